// Tells below a timeline what the mark at hand is.
for (const section of document.querySelectorAll("section")) {
  const line = section.querySelector(".tell");
  const tell = (event) => {
    const mark = event.target.closest("[data-tell]");
    if (mark && line) line.textContent = mark.dataset.tell;
  };
  section.addEventListener("mouseover", tell);
  section.addEventListener("focusin", tell);
}
// The arrow keys move between the cells of the table.
document.querySelector("table")?.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const cell = event.target.closest("td");
  if (!step || !cell) return;
  const rows = [...cell.closest("tbody").rows];
  let row = rows.indexOf(cell.parentElement), column = cell.cellIndex;
  for (;;) {
    row += step[0];
    column += step[1];
    const next = rows[row]?.cells[column];
    if (!next) return;
    const link = next.querySelector("a");
    if (link) {
      event.preventDefault();
      return link.focus();
    }
  }
});
addEventListener("hashchange", () => document.querySelector("section:target")?.scrollIntoView({ block: "nearest" }));
