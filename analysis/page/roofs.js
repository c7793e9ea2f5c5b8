// Roofs of the chosen device on the log-log picture, and their list in words.
const DASHES = ["solid", "dash", "dashdot", "dot"];

function deviceNow() {
  const name = codes.device.values[state.device];
  return data.devices.find((device) => device.name === name) || { sets: [] };
}

function setsNow() {
  return deviceNow().sets.filter((set) => state.roofs[set.kind] && set.flats.length);
}

function roofTraces(low, high) {
  const traces = [];
  for (const set of setsNow()) {
    const line = { color: colour(set.kind === "datasheet" ? "sheet" : "measured"), width: 1.6 };
    const perByte = set.gb_per_s / 1e3;
    const end = Math.max(...set.flats.map((flat) => flat.tflops / perByte));
    traces.push({
      x: [Math.min(low, end), end], y: [Math.min(low, end) * perByte, end * perByte], mode: "lines", line, hoverinfo: "skip", showlegend: false,
      meta: "roof",
    });
    set.flats.forEach((flat, i) => {
      const ridge = flat.tflops / perByte;
      traces.push({
        x: [ridge, Math.max(high, ridge * 4)], y: [flat.tflops, flat.tflops], mode: "lines", hoverinfo: "skip", showlegend: false,
        line: { ...line, dash: DASHES[i % DASHES.length] }, meta: "roof",
      });
    });
  }
  return traces;
}

function listRoofs() {
  const list = document.getElementById("roof-list");
  list.replaceChildren();
  for (const set of setsNow()) {
    const words = [`DRAM ${number(set.gb_per_s)} GB/s ${set.kind}`, ...set.flats.map((flat, i) => `${flat.label}${i ? ` (${DASHES[i % DASHES.length]})` : ""}`)];
    if (set.launch_us) words.push(`launch floor ${number(set.launch_us, 3)} us`);
    for (const word of words) {
      const item = document.createElement("li");
      item.textContent = word;
      list.append(item);
    }
  }
}
