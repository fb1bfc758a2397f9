"use strict";
// Zooms and moves the graphs, finds nodes by name, and shows what is known about them.
for (const panel of document.querySelectorAll(".graph-panel")) {
  const svg = panel.querySelector("svg.graph");
  const data = JSON.parse(panel.querySelector("script[type='application/json']").textContent);
  const details = panel.querySelector(".node-details");
  const search = panel.querySelector("input[type=search]");
  const matches = panel.querySelector(".matches");
  const prefix = svg.id.slice(0, -"graph".length);
  const whole = svg.viewBox.baseVal;
  const full = { x: whole.x, y: whole.y, width: whole.width, height: whole.height };
  let view = { ...full };
  let found = [];
  let current = -1;

  const element = (number) => document.getElementById(prefix + "n" + number);
  const place = (number) => {
    const [x, y] = element(number).getAttribute("transform").match(/-?\d+/g).map(Number);
    return { x, y };
  };
  const show = () => svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.width} ${view.height}`);
  const zoom = (factor, x = view.x + view.width / 2, y = view.y + view.height / 2) => {
    const width = Math.min(Math.max(view.width * factor, 160), 1.5 * full.width + 400);
    const scale = width / view.width;
    view = {
      x: x - (x - view.x) * scale, y: y - (y - view.y) * scale,
      width, height: view.height * scale,
    };
    show();
  };
  const point = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY);
    return at.matrixTransform(svg.getScreenCTM().inverse());
  };
  const centre = (number) => {
    const { x, y } = place(number);
    const width = Math.min(view.width, 900);
    view.height *= width / view.width;
    view.width = width;
    view.x = x + 48 - view.width / 2;
    view.y = y + 12 - view.height / 2;
    show();
  };
  const row = (list, name, value) => {
    if (value === "" || value === null || value === undefined) return;
    const term = document.createElement("dt");
    const text = document.createElement("dd");
    term.textContent = name;
    text.textContent = value;
    list.append(term, text);
  };
  const ms = (value) => (value === null ? "" : value.toFixed(3) + " ms");
  const names = (numbers) => {
    const shown = numbers.slice(0, 4).map((number) => data.nodes[number][0]);
    return shown.join("\n") + (numbers.length > 4 ? `\nand ${numbers.length - 4} more` : "");
  };
  const select = (number) => {
    if (current >= 0) element(current).classList.remove("on");
    current = number;
    element(number).classList.add("on");
    const [name, op, shape, reason, area, layer, sqnr, count] = data.nodes[number];
    const kind = element(number).classList[1];
    const title = document.createElement("h4");
    title.textContent = op;
    const list = document.createElement("dl");
    row(list, "name", name);
    row(list, "form", data.forms[kind]);
    row(list, "why", reason >= 0 ? data.reasons[reason] : "");
    row(list, "result", shape);
    if (layer >= 0) {
      const [nodes, before, after, precision] = data.layers[layer];
      const times = after === null ? ms(before) : `${ms(before)} before, ${ms(after)} now`;
      row(list, "time", nodes > 1 ? `${times}, for ${nodes} nodes together` : times);
      if (kind !== "d") row(list, "computes in", precision);
    }
    row(list, "own error", sqnr === null ? "" : `${sqnr.toFixed(1)} dB`);
    row(list, "part of", area >= 0 ? data.areas[area] : "");
    if (count > 1) row(list, "stands for", `${count} nodes`);
    const into = data.edges.filter((edge) => edge[1] === number).map((edge) => edge[0]);
    const out = data.edges.filter((edge) => edge[0] === number).map((edge) => edge[1]);
    row(list, "reads", names(into));
    row(list, "read by", names(out));
    details.replaceChildren(title, list);
    const lines = [...into.map((each) => [each, number]), ...out.map((each) => [number, each])];
    svg.querySelector(".chosen").setAttribute("d", lines.map(([one, other]) => {
      const from = place(one), to = place(other);
      return `M${from.x + 48} ${from.y + 24}L${to.x + 48} ${to.y}`;
    }).join(""));
  };

  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== svg) return;
    event.preventDefault();
    const { x, y } = point(event);
    zoom(Math.exp(event.deltaY / 400), x, y);
  }, { passive: false });
  svg.addEventListener("pointerdown", (event) => {
    const start = point(event);
    const before = svg.getScreenCTM();
    let moved = false;
    svg.setPointerCapture(event.pointerId);
    const move = (next) => {
      moved ||= Math.hypot(next.clientX - event.clientX, next.clientY - event.clientY) > 4;
      if (!moved) return;
      const at = new DOMPoint(next.clientX, next.clientY).matrixTransform(before.inverse());
      view.x += start.x - at.x;
      view.y += start.y - at.y;
      start.x = at.x;
      start.y = at.y;
      show();
    };
    const up = (last) => {
      svg.removeEventListener("pointermove", move);
      svg.removeEventListener("pointerup", up);
      svg.removeEventListener("pointercancel", up);
      if (moved || last.type !== "pointerup") return;
      const hit = document.elementFromPoint(last.clientX, last.clientY)?.closest(".n");
      if (hit) select(Number(hit.id.slice(prefix.length + 1)));
    };
    svg.addEventListener("pointermove", move);
    svg.addEventListener("pointerup", up);
    svg.addEventListener("pointercancel", up);
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key === "+" || event.key === "=") zoom(0.8);
    else if (event.key === "-") zoom(1.25);
    else if (event.key === "0") { view = { ...full }; show(); }
    else if (step[event.key]) {
      view.x += step[event.key][0] * view.width / 8;
      view.y += step[event.key][1] * view.height / 8;
      show();
    } else return;
    event.preventDefault();
  });
  panel.querySelector(".zoom-in").addEventListener("click", () => zoom(0.7));
  panel.querySelector(".zoom-out").addEventListener("click", () => zoom(1 / 0.7));
  panel.querySelector(".zoom-fit").addEventListener("click", () => { view = { ...full }; show(); });
  search.addEventListener("input", () => {
    const text = search.value.trim().toLowerCase();
    svg.querySelectorAll(".hit").forEach((each) => each.classList.remove("hit"));
    found = text ? data.nodes.flatMap((node, number) =>
      node[0].toLowerCase().includes(text) || node[1].toLowerCase() === text ? [number] : []) : [];
    found.forEach((number) => element(number).classList.add("hit"));
    svg.classList.toggle("searching", found.length > 0);
    matches.textContent = text ? `${found.length} found` : "";
  });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !found.length) return;
    const next = found[(found.indexOf(current) + 1) % found.length];
    select(next);
    centre(next);
  });
  for (const link of document.querySelectorAll(`a[data-graph="${prefix}"]`)) {
    link.addEventListener("click", () => {
      const number = Number(link.dataset.node);
      select(number);
      centre(number);
    });
  }
}
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(button.previousElementSibling.textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
    }
  });
}
