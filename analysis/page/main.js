// Starts the page: controls, theme, and the one function that draws all again.
const points = buildTable(document.getElementById("points"), "points", pointColumns());

for (const pair of data.pairs) {
  const section = document.createElement("section"), heading = document.createElement("h2"), note = document.createElement("p");
  heading.textContent = pair.title;
  note.textContent = pair.note;
  note.className = "note";
  section.append(heading, note);
  const holder = document.createElement("div");
  holder.className = "table";
  holder.id = `against-${pair.name}`;
  section.append(holder);
  document.getElementById("pairs").append(section);
  const shown = pair.columns.map((name, i) => ({ name, number: pair.numbers[i], get: (row) => row[i], show: pair.numbers[i] ? number : undefined }));
  const table = buildTable(holder, pair.title, shown);
  table.rows = pair.rows;
  table.draw();
}

let later = 0;

function draw() {
  const rows = shownRows();
  points.rows = rows;
  points.draw();
  document.getElementById("shown").textContent = `${rows.length.toLocaleString("en-US")} of ${data.count.toLocaleString("en-US")} points`;
  document.getElementById("everything").hidden = state.line === null;
  // The time view lies below: the reader does not wait for it.
  clearTimeout(later);
  later = setTimeout(() => drawTime(rows), 50);
  return drawRoofline(rows);
}

function tell(row) {
  document.getElementById("detail").textContent = row === null ? "" : facts(row).join("\n");
}

function isolate(row) {
  tell(row);
  state.line = data.line[row] < 0 || state.line === data.line[row] ? null : data.line[row];
  draw();
}

function setTheme(isDark) {
  state.dark = isDark;
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  const button = document.getElementById("theme");
  button.textContent = isDark ? "Light" : "Dark";
  button.setAttribute("aria-pressed", String(isDark));
}

const preference = window.matchMedia("(prefers-color-scheme: dark)");
setTheme(preference.matches);
preference.addEventListener("change", (event) => { setTheme(event.matches); draw(); });
document.getElementById("theme").addEventListener("click", () => { setTheme(!state.dark); draw(); });
document.getElementById("time-axis").addEventListener("change", () => drawTime(shownRows()));
document.getElementById("everything").addEventListener("click", () => { state.line = null; tell(null); draw(); });
buildControls(draw);
Promise.all([draw(), drawTime(shownRows())]).then(() => {
  for (const name of ["roofline", "time"]) {
    document.getElementById(name).on("plotly_click", (event) => {
      const hit = event.points.find((point) => point.customdata !== undefined);
      if (hit) isolate(hit.customdata);
    });
  }
  performance.mark("drawn");
  document.documentElement.dataset.drawn = "true";
});
