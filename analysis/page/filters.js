// Filters, layers and the choice of a device: form controls whose state decides which rows are shown.
function isShown(row) {
  if (codes.device.codes[row] !== state.device) return false;
  if (data.published[row] ? !state.published : !state.measured) return false;
  return data.filters.every((name) => !state.allowed[name] || state.allowed[name].has(codes[name].codes[row]));
}

function shownRows() {
  const rows = [];
  for (let row = 0; row < data.count; row++) if (isShown(row)) rows.push(row);
  return rows;
}

function checkbox(parent, words, isChecked, changed) {
  const label = document.createElement("label");
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = isChecked;
  box.addEventListener("change", () => changed(box.checked));
  label.append(box, " ", words);
  parent.append(label);
  return box;
}

function buildFilter(name, changed) {
  const values = codes[name].values;
  if (values.length < 2) return null;
  const details = document.createElement("details");
  details.dataset.filter = name;
  const summary = document.createElement("summary");
  const choices = document.createElement("div");
  choices.className = "choices";
  const allowed = new Set(values.keys());
  const told = () => {
    state.allowed[name] = allowed.size === values.length ? null : allowed;
    summary.textContent = allowed.size === values.length ? `${name}: all` : `${name}: ${allowed.size} of ${values.length}`;
  };
  const boxes = values.map((value, code) => checkbox(choices, value || "(none)", true, (on) => {
    if (on) allowed.add(code); else allowed.delete(code);
    told();
    changed();
  }));
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "all / none";
  button.addEventListener("click", () => {
    const on = allowed.size < values.length;
    allowed.clear();
    boxes.forEach((box, code) => { box.checked = on; if (on) allowed.add(code); });
    told();
    changed();
  });
  choices.prepend(button);
  told();
  details.append(summary, choices);
  return details;
}

function buildControls(changed) {
  const holder = document.getElementById("filters");
  for (const name of data.filters) {
    const built = buildFilter(name, changed);
    if (built) holder.append(built);
  }
  const select = document.getElementById("device");
  const counts = codes.device.values.map(() => 0);
  codes.device.codes.forEach((code) => counts[code]++);
  codes.device.values.forEach((name, code) => select.append(new Option(`${name || "no device named"} (${counts[code]})`, code)));
  state.device = counts.indexOf(Math.max(0, ...counts));
  select.value = state.device;
  select.addEventListener("change", () => { state.device = Number(select.value); state.line = null; changed(); });
  document.getElementById("device-label").hidden = codes.device.values.length < 2;
  const kinds = new Set(data.devices.flatMap((device) => device.sets.map((set) => set.kind)));
  const roofs = document.getElementById("roof-sets");
  for (const kind of kinds) checkbox(roofs, kind, true, (on) => { state.roofs[kind] = on; changed(); });
  roofs.hidden = kinds.size === 0;
  const layers = document.getElementById("layers");
  const both = data.published.includes(0) && data.published.includes(1);
  checkbox(layers, "measured here", true, (on) => { state.measured = on; changed(); });
  checkbox(layers, "published", true, (on) => { state.published = on; changed(); });
  layers.hidden = !both;
}
