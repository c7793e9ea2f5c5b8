// A table whose headers are buttons that sort, with a search field and a CSV of what it shows.
const STEP = 100;

function csvCell(value) {
  const told = value === null || value === undefined ? "" : String(value);
  return /[",\r\n]/.test(told) ? `"${told.replace(/"/g, '""')}"` : told;
}

// columns: [{name, get(row), show(value), number, wide}]; rows() gives the rows to choose from.
function buildTable(holder, name, tableColumns) {
  const table = { rows: [], sorted: null, descending: false, most: STEP, needle: "" };
  const bar = document.createElement("div"), scroll = document.createElement("div"), count = document.createElement("span");
  bar.className = "bar";
  scroll.className = "scroll";
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", `Table of ${name}`);
  count.setAttribute("role", "status");
  const search = document.createElement("input");
  search.type = "search";
  search.placeholder = "words to find";
  search.setAttribute("aria-label", `Words to find in ${name}`);
  const button = (words, act) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = words;
    made.addEventListener("click", act);
    return made;
  };
  const grid = document.createElement("table"), head = grid.createTHead().insertRow(), body = grid.createTBody();
  const headers = tableColumns.map((column) => {
    const header = document.createElement("th");
    header.scope = "col";
    if (column.number) header.className = "number";
    header.append(button(column.name, () => {
      table.descending = table.sorted === column ? !table.descending : Boolean(column.number);
      table.sorted = column;
      table.draw();
    }));
    head.append(header);
    return header;
  });
  const chosen = () => {
    const words = table.needle.toLowerCase().split(/\s+/).filter(Boolean);
    let rows = table.rows;
    if (words.length) {
      rows = rows.filter((row) => {
        const line = tableColumns.map((column) => column.get(row)).join(" ").toLowerCase();
        return words.every((word) => line.includes(word));
      });
    }
    if (!table.sorted) return rows;
    const { get, number: isNumber } = table.sorted, sign = table.descending ? -1 : 1;
    const isNone = (value) => value === null || value === undefined || value === "";
    return [...rows].sort((a, b) => {
      const one = get(a), other = get(b);
      if (isNone(one) || isNone(other)) return isNone(one) - isNone(other);
      return sign * (isNumber ? one - other : one < other ? -1 : one > other ? 1 : 0);
    });
  };
  const more = button("Show more", () => { table.most += 10 * STEP; table.draw(); });
  table.draw = () => {
    const rows = chosen();
    headers.forEach((header, i) => {
      const direction = tableColumns[i] !== table.sorted ? "none" : table.descending ? "descending" : "ascending";
      header.setAttribute("aria-sort", direction);
      header.firstChild.textContent = tableColumns[i].name + { none: "", descending: " ▾", ascending: " ▴" }[direction];
    });
    body.replaceChildren(...rows.slice(0, table.most).map((row) => {
      const line = document.createElement("tr");
      for (const column of tableColumns) {
        const cell = line.insertCell();
        cell.textContent = column.show ? column.show(column.get(row)) : column.get(row);
        if (column.number) cell.className = "number";
        if (column.wide) cell.className = "wide";
      }
      return line;
    }));
    more.hidden = rows.length <= table.most;
    count.textContent = `${Math.min(rows.length, table.most)} of ${rows.length} rows`;
  };
  table.csv = () => [tableColumns.map((column) => column.name), ...chosen().map((row) => tableColumns.map((column) => column.get(row)))]
    .map((cells) => cells.map(csvCell).join(",")).join("\n") + "\n";
  search.addEventListener("input", () => { table.needle = search.value; table.most = STEP; table.draw(); });
  const save = button("CSV", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([table.csv()], { type: "text/csv" }));
    link.download = `${name}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  save.setAttribute("aria-label", `Save ${name} as CSV`);
  bar.append(search, save, count);
  scroll.append(grid);
  holder.append(bar, scroll, more);
  return table;
}

function pointColumns() {
  const coded = (name) => ({ name, get: (row) => text(name, row) });
  const numeric = (name, column, show = number) => ({ name, number: true, show, get: (row) => columns[column][row] });
  return [
    coded("op"), coded("provider"), { name: "shape", get: shape }, coded("phase"), coded("dtype"), coded("technique"),
    numeric("time us", "time_us"), numeric("low us", "low_us"), numeric("high us", "high_us"), numeric("TFLOP/s", "tflops_per_s"),
    numeric("GB/s", "gb_per_s"), numeric("FLOP/byte", "intensity_flops_per_byte"), numeric("of attainable", "fraction_of_attainable", percent),
    numeric("of datasheet", "fraction_of_datasheet", percent), coded("class"), { name: "what limits it", get: (row) => columns.reason[row], wide: true },
    coded("flags"), { name: "case", get: (row) => columns.case_id[row] },
  ];
}
