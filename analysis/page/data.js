// The points as columns, and what a point is called and says.
const data = JSON.parse(document.getElementById("data").textContent);
const { columns, codes } = data;
const state = {
  device: 0, allowed: {}, roofs: { datasheet: true, measured: true }, published: true, measured: true, line: null, dark: false,
};

function text(name, row) {
  return codes[name].values[codes[name].codes[row]];
}

const FORMATS = [...Array(7).keys()].map((digits) => new Intl.NumberFormat("en-US", { maximumSignificantDigits: digits || 1 }));

function number(value, digits = 4) {
  if (value === null || value === undefined) return "";
  const short = Number(value.toPrecision(digits));
  return Math.abs(short) >= 1e6 || (short !== 0 && Math.abs(short) < 1e-3) ? short.toExponential() : FORMATS[digits].format(short);
}

function percent(value) {
  return value === null || value === undefined ? "" : `${(100 * value).toFixed(1)} %`;
}

function shape(row) {
  const id = columns.case_id[row];
  return id.slice(id.indexOf("=") < 0 ? 0 : id.lastIndexOf("/", id.indexOf("=")) + 1);
}

// What hovering over a point tells, one fact a line.
function facts(row) {
  const c = (name) => columns[name][row];
  const lines = [
    `${text("op", row)}, ${text("provider", row)}, ${text("dtype", row)}${text("phase", row) ? ", " + text("phase", row) : ""}`,
    shape(row),
    `time ${number(c("time_us"))} us` + (c("low_us") !== null && c("low_us") !== c("high_us") ? ` (${number(c("low_us"))} to ${number(c("high_us"))})` : ", no interval"),
    `${number(c("tflops_per_s"))} TFLOP/s, ${number(c("gb_per_s"))} GB/s, ${number(c("intensity_flops_per_byte"))} FLOP/byte`,
  ];
  const shares = [["datasheet roof", "fraction_of_datasheet"], ["measured roof", "fraction_of_measured"], ["attainable", "fraction_of_attainable"]]
    .filter(([, name]) => c(name) !== null).map(([words, name]) => `${percent(c(name))} of ${words}`);
  if (shares.length) lines.push(shares.join(", "));
  lines.push(`${text("class", row)}: ${columns.reason[row]}`);
  const ceilings = [["tile", "tile_ceiling"], ["wave", "wave_ceiling"], ["compiled, pipes overlapped", "compile_overlapped"], ["compiled, pipes in turn", "compile_serial"]]
    .filter(([, name]) => c(name) !== null).map(([words, name]) => `${words} ${percent(c(name))}`);
  if (ceilings.length) lines.push(`ceilings: ${ceilings.join(", ")}`);
  if (text("flags", row)) lines.push(`flagged: ${text("flags", row)}`);
  lines.push(`${data.published[row] ? "published" : "run"} ${text("run", row)}`);
  return lines;
}

// Plotly reads tags in hover texts: nothing of a name may become one.
const hovers = new Map();

function hover(row) {
  if (!hovers.has(row)) hovers.set(row, hoverText(row));
  return hovers.get(row);
}

function hoverText(row) {
  const escape = (s) => s.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const wrap = (s) => s.replace(/(.{60,80}?)[ ,](?=.)/g, (part) => part + "\n").split("\n");
  return facts(row).flatMap(wrap).map(escape).join("<br>");
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function phaseColour(phase) {
  const palette = data.palette[state.dark ? "dark" : "light"];
  return palette[phase] || palette.other;
}
