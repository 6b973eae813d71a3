// The kinds of work that the console knows by name. Others are shown too, as the API tells them; a line here gives one a
// place in the filters, and a view of its own.
export const KINDS = {
  page_ingest: { view: { name: "Partitions", to: (id) => `ingestions/${id}` } },
};
