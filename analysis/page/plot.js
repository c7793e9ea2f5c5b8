// The roofline: colour is the phase, the marker the op, hollow means overhead-bound, a cross invalid.
const SYMBOLS = [
  ["circle", 0, 0], ["square", 4, 45], ["triangle-up", 3, 0], ["diamond", 4, 0], ["triangle-down", 3, 180], ["pentagon", 5, 0],
  ["hexagon2", 6, 0], ["triangle-left", 3, 270], ["triangle-right", 3, 90], ["octagon", 8, 22.5],
];
const CONFIG = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };

function symbolOf(row) {
  const symbol = SYMBOLS[codes.op.codes[row] % SYMBOLS.length][0];
  const kind = text("class", row);
  return kind === "invalid" ? "x-thin-open" : kind === "overhead-bound" ? `${symbol}-open` : symbol;
}

function icon(symbol, fill, stroke) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "-1.2 -1.2 2.4 2.4");
  svg.setAttribute("aria-hidden", "true");
  const [, corners, turn] = symbol;
  const part = document.createElementNS(svg.namespaceURI, corners ? "polygon" : "circle");
  if (corners) {
    const at = (i) => ((turn - 90) + 360 * i / corners) * Math.PI / 180;
    part.setAttribute("points", Array.from({ length: corners }, (_, i) => `${Math.cos(at(i))},${Math.sin(at(i))}`).join(" "));
  } else part.setAttribute("r", "0.9");
  part.setAttribute("fill", fill);
  part.setAttribute("stroke", stroke);
  part.setAttribute("stroke-width", "0.25");
  svg.append(part);
  return svg;
}

function drawLegend(rows) {
  const holder = document.getElementById("legend");
  holder.replaceChildren();
  const entry = (picture, words) => {
    const span = document.createElement("span");
    span.append(picture, words);
    holder.append(span);
  };
  const counted = (name) => {
    const counts = new Map();
    rows.forEach((row) => counts.set(codes[name].codes[row], (counts.get(codes[name].codes[row]) || 0) + 1));
    return [...counts].sort((a, b) => a[0] - b[0]);
  };
  for (const [code, count] of counted("phase")) {
    const phase = codes.phase.values[code];
    entry(icon(SYMBOLS[1], phaseColour(phase), "none"), `${phase || "no phase"} (${count})`);
  }
  for (const [code, count] of counted("op")) entry(icon(SYMBOLS[code % SYMBOLS.length], colour("faint"), "none"), `${codes.op.values[code]} (${count})`);
  if (rows.some((row) => text("class", row) === "overhead-bound")) entry(icon(SYMBOLS[0], "none", colour("faint")), "hollow: overhead-bound");
  if (rows.some((row) => text("class", row) === "invalid")) entry("✕", "invalid: above what is possible");
}

function axis(title, more = {}) {
  return {
    type: "log", title: { text: title }, gridcolor: colour("grid"), linecolor: colour("line"), zerolinecolor: colour("grid"),
    exponentformat: "power", dtick: 1, ...more,
  };
}

function layout(x, y) {
  const narrow = window.innerWidth < 600;
  return {
    xaxis: axis(x), yaxis: axis(y), showlegend: false, hovermode: "closest", dragmode: narrow ? false : "pan",
    margin: { l: narrow ? 52 : 66, r: 14, t: 34, b: 50 }, paper_bgcolor: colour("ground"), plot_bgcolor: colour("ground"),
    font: { family: "system-ui, 'DejaVu Sans', sans-serif", size: 12, color: colour("ink") }, uirevision: state.device,
    hoverlabel: { align: "left", bgcolor: colour("panel"), bordercolor: colour("line"), font: { color: colour("ink"), size: 12 } },
  };
}

function pointTrace(rows, x, y) {
  const size = Math.max(5, Math.min(9, 9 * Math.sqrt(150 / Math.max(rows.length, 1))));
  const usual = rows.length > 800 ? 0.65 : 0.9;
  const colours = rows.map((row) => phaseColour(text("phase", row)));
  return {
    x: rows.map((row) => columns[x][row]), y: rows.map((row) => columns[y][row]), text: rows.map(hover), customdata: rows,
    mode: "markers", hovertemplate: "%{text}<extra></extra>", showlegend: false, meta: "points",
    marker: {
      size, color: colours, symbol: rows.map(symbolOf),
      opacity: state.line === null ? usual : rows.map((row) => data.line[row] === state.line ? usual : 0.06),
      line: { width: 0.8, color: colours },
    },
  };
}

function lineTrace(rows, x, y) {
  const sorted = rows.filter((row) => data.line[row] === state.line).sort((a, b) => columns[x][a] - columns[x][b]);
  return {
    x: sorted.map((row) => columns[x][row]), y: sorted.map((row) => columns[y][row]), mode: "lines", hoverinfo: "skip",
    line: { color: colour("ink"), width: 1.5 }, showlegend: false, meta: "line",
  };
}

function drawRoofline(rows) {
  const x = "intensity_flops_per_byte", y = "tflops_per_s";
  const drawn = rows.filter((row) => columns[x][row] > 0 && columns[y][row] > 0);
  const all = drawn.map((row) => columns[x][row]);
  const low = all.reduce((a, b) => Math.min(a, b), 1) / 2, high = all.reduce((a, b) => Math.max(a, b), 10) * 2;
  const traces = [...roofTraces(low, high), pointTrace(drawn, x, y)];
  if (state.line !== null) traces.push(lineTrace(drawn, x, y));
  drawLegend(rows);
  listRoofs();
  return Plotly.react("roofline", traces, layout("useful FLOP per compulsory byte", "TFLOP/s"), CONFIG);
}
