// Time against bytes or M, with what is attainable: so that points bound by their launch show.
function attainableTraces(rows, x) {
  const line = { color: colour("measured"), width: 1.4 };
  const base = { mode: "lines", hoverinfo: "skip", showlegend: false, line, meta: "attainable" };
  const lines = new Map();
  for (const row of rows) {
    const key = data.line[row];
    if (key < 0 || columns.attainable_us[row] === null || (state.line !== null && key !== state.line)) continue;
    if (!lines.has(key)) lines.set(key, []);
    lines.get(key).push(row);
  }
  const xs = [], ys = [];
  for (const members of [...lines.values()].slice(0, 200)) {
    members.sort((a, b) => columns[x][a] - columns[x][b]);
    members.forEach((row) => { xs.push(columns[x][row]); ys.push(columns.attainable_us[row]); });
    xs.push(null);
    ys.push(null);
  }
  return xs.length ? [{ ...base, x: xs, y: ys, opacity: lines.size > 20 ? 0.45 : 1 }] : [];
}

function drawTime(rows) {
  const x = document.getElementById("time-axis").value;
  const drawn = rows.filter((row) => columns[x][row] > 0 && columns.time_us[row] > 0);
  const traces = [...attainableTraces(drawn, x), pointTrace(drawn, x, "time_us")];
  return Plotly.react("time", traces, layout(x === "M" ? "M" : "compulsory bytes", "time, us"), CONFIG);
}
