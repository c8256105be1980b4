// Replaces the changing part of the page with what the server sends. The focus stays where it was.
"use strict";
const part = document.getElementById("changing");
const source = new EventSource(part.dataset.live);
let isPressed = false;
document.addEventListener("pointerdown", (event) => { isPressed = event.button === 0; });
for (const end of ["pointerup", "pointercancel"]) {
  // The click comes after it.
  document.addEventListener(end, () => setTimeout(() => { isPressed = false; }));
}
window.addEventListener("blur", () => { isPressed = false; });
const isSelected = () => {
  const { isCollapsed, anchorNode, focusNode } = document.getSelection();
  return !isCollapsed && (part.contains(anchorNode) || part.contains(focusNode));
};
source.onmessage = (message) => {
  // A redraw would lose the click or the selection. The next one comes within a second.
  if (isPressed || isSelected()) return;
  const focused = document.activeElement && document.activeElement.id;
  const opened = [...part.querySelectorAll("details[open]")].map((one) => one.id);
  part.innerHTML = message.data;
  opened.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
  if (focused && focused !== document.activeElement.id) document.getElementById(focused)?.focus();
};
source.onerror = () => {
  if (!part.querySelector("#disconnected")) {
    const note = document.createElement("p");
    note.id = "disconnected";
    note.className = "outage";
    note.setAttribute("role", "alert");
    note.textContent = "`tenure ui` does not answer. What follows is what it sent last.";
    part.prepend(note);
  }
};
document.addEventListener("keydown", (event) => {
  const filter = document.getElementById("filter");
  if (event.key === "/" && filter && event.target.tagName !== "INPUT") {
    event.preventDefault();
    filter.focus();
  }
});
