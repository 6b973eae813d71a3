// Folder sync: what the Overview of a run says about it. The contract, with everything else that may stand here, is in ../kinds.js.
const facts = ({ params }) => [["Folder", params.path || "/"], ["Connection", params.connection]];

export default { title: "Folder sync", facts, laneName: (key) => (key === "pages" ? "Pages" : null) };
