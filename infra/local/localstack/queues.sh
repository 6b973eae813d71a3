#!/bin/sh
# LocalStack runs this when it is ready: the queues of template.yaml for the stage `local`.
# (The whole template needs services that only LocalStack's paid plans have.)
set -eu
fifo() {
    awslocal sqs create-queue --queue-name "$1" \
        --attributes FifoQueue=true,DeduplicationScope=messageGroup,FifoThroughputLimit=perMessageGroupId,VisibilityTimeout=180
}
fifo baton-local-page-ingest.fifo
fifo baton-local-page-ingest-dead.fifo
fifo baton-local-query-run.fifo
fifo baton-local-query-run-dead.fifo
awslocal sqs create-queue --queue-name baton-local-job --attributes VisibilityTimeout=5400
fifo baton-local-search.fifo
fifo baton-local-search-dead.fifo
fifo baton-local-row-job.fifo
fifo baton-local-row-job-dead.fifo
fifo baton-local-folder-sync.fifo
fifo baton-local-folder-sync-dead.fifo
awslocal sqs create-queue --queue-name baton-local-delay --attributes VisibilityTimeout=180
awslocal sqs create-queue --queue-name baton-local-delay-dead
awslocal sqs create-queue --queue-name baton-local-events-dead
