// Row job: what the Overview of a run says about it. The contract, with everything else that may stand here, is in ../kinds.js.
const facts = ({ params }) => [
  ["Text", params.text],
  ["Times", params.times],
  ["Seconds apart", params.every_s],
].filter(([, value]) => value !== undefined);

export default { title: "Row job", facts, laneName: (key) => (key === "notes" ? "Notes" : null) };
