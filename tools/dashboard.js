// Picks and sorts the rows of the table; the address keeps what is picked.
"use strict";
const table = document.getElementById("results");
const body = table.tBodies[0], rows = [...body.rows];
const heads = [...table.tHead.rows[0].cells], names = heads.map((head) => head.textContent);
const selects = [...document.querySelectorAll("select")];
const units = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };

// A cell's number, with its unit of bytes; null where it holds none.
function numberOf(text) {
  const match = text.match(/^[≈ ]*(-?[\d.]+(?:e[-+]?\d+)?)(?: (B|[KMG]iB))?/);
  return match ? Number(match[1]) * (units[match[2]] || 1) : null;
}

function show() {
  const wanted = selects.map((select) => [names.indexOf(select.dataset.column), select.value]);
  let count = 0;
  for (const row of rows) {
    row.hidden = wanted.some(([column, value]) => value && row.cells[column].textContent !== value);
    count += !row.hidden;
  }
  for (const [column, value] of wanted) { // what is the same in every row that is left makes room for the others
    for (const row of [table.tHead.rows[0], ...rows]) row.cells[column].hidden = value !== "";
  }
  document.getElementById("count").textContent = `${count} of ${rows.length} rows.`;
  const picked = selects.filter((select) => select.value).map((select) => [select.dataset.column, select.value]);
  history.replaceState(null, "", `#${new URLSearchParams(picked)}`);
}

function sort(column) {
  const head = heads[column], down = head.getAttribute("aria-sort") === "ascending";
  heads.forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const isNumeric = head.classList.contains("r"), sign = down ? -1 : 1;
  const keyed = rows.map((row) => [isNumeric ? numberOf(row.cells[column].textContent) : row.cells[column].textContent, row]);
  keyed.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null); // what has no figure comes last either way
    return sign * (isNumeric ? a - b : a.localeCompare(b));
  });
  body.append(...keyed.map(([, row]) => row));
}

heads.forEach((head, column) => {
  const button = document.createElement("button");
  button.textContent = head.textContent;
  button.addEventListener("click", () => sort(column));
  head.replaceChildren(button);
});
const given = new URLSearchParams(location.hash.slice(1));
for (const select of selects) {
  const value = given.get(select.dataset.column);
  if ([...select.options].some((option) => option.text === value)) select.value = value;
  select.addEventListener("change", show);
}
document.querySelector("fieldset").hidden = false;
show();
