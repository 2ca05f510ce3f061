"use strict";
// Tells the figures under the pointer, or under the arrow keys; everything else is on the page without it.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const [ACCURACY, RECALL, RELEASED] = [4, 5, 6];
  const MOST_LINES = 8;
  const make = (name, parent, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return parent.appendChild(node);
  };
  const percent = (share) => (share === null ? "-" : (100 * share).toFixed(1) + " %");
  const figure = (value) => {
    const size = Math.abs(value);
    return value.toLocaleString("en", { maximumFractionDigits: size >= 100 ? 0 : size >= 10 ? 1 : 2 });
  };

  data.plots.forEach((plot, column) => {
    const svg = document.getElementById(plot.id);
    const [left, right, top, bottom] = data.edges;
    const toX = (value) => left + ((value / plot.size - plot.x[0]) / (plot.x[1] - plot.x[0])) * (right - left);
    const toY = (share) => bottom - ((100 * share - plot.y[0]) / (plot.y[1] - plot.y[0])) * (bottom - top);
    const layer = make("g", svg, { visibility: "hidden" });
    const cross = make("line", layer, { class: "cross", y1: top, y2: bottom });
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    tip.setAttribute("role", "status");
    svg.parentNode.append(tip);
    const stops = [...new Set(data.runs.flatMap((run) => run.points.map((p) => p[column])))].sort((a, b) => a - b);
    let stop = -1;

    const nearest = (points, value) =>
      points.reduce((best, p) => (Math.abs(p[column] - value) < Math.abs(best[column] - value) ? p : best));
    const line = (head, text, series) => {
      const row = tip.appendChild(document.createElement(head ? "b" : "div"));
      if (series) {
        row.className = series;
        row.append(document.createElement("i"));
      }
      row.append(text);
      return row;
    };
    const hide = () => {
      tip.hidden = true;
      layer.setAttribute("visibility", "hidden");
    };
    const show = (value) => {
      let found = data.runs
        .filter((run) => run.points.length)
        .map((run) => ({ run, point: nearest(run.points, value) }));
      if (!found.length) return;
      const at = nearest(found.map((f) => f.point), value)[column];
      // A run that has ended says nothing of later.
      found = found.filter(({ run }) => at <= run.points[run.points.length - 1][column]);
      layer.querySelectorAll(".dot").forEach((dot) => dot.remove());
      cross.setAttribute("x1", toX(at));
      cross.setAttribute("x2", toX(at));
      layer.setAttribute("visibility", "visible");
      tip.replaceChildren();
      const head = plot.unit ? figure(at / plot.size) + " " + plot.unit : plot.axis + " " + at;
      line(true, head);
      found.sort((a, b) => b.point[ACCURACY] - a.point[ACCURACY]);
      for (const { run, point } of found.slice(0, MOST_LINES)) {
        for (const share of data.runs.length > 3 ? [point[ACCURACY]] : [point[RECALL], point[ACCURACY]]) {
          if (share !== null) {
            make("circle", layer, { class: "dot " + run.class, r: 4, cx: toX(point[column]), cy: toY(share) });
          }
        }
        if (data.runs.length > 1) {
          line(false, run.name + ", seed " + run.seed + ": " + percent(point[ACCURACY]), run.class);
        } else {
          line(false, "accuracy " + percent(point[ACCURACY]), run.class);
          if (point[RECALL] !== null) line(false, "macro recall " + percent(point[RECALL]));
          if (column > 0) line(false, "version " + point[0]);
          if (!point[RELEASED]) line(false, "kept back by the gate");
        }
      }
      if (found.length > MOST_LINES) line(false, "and " + (found.length - MOST_LINES) + " more");
      tip.hidden = false;
      const scale = svg.clientWidth / data.size[0] || svg.getBoundingClientRect().width / data.size[0];
      const box = svg.getBoundingClientRect();
      const outer = svg.parentNode.getBoundingClientRect();
      const x = box.left - outer.left + toX(at) * scale;
      const onLeft = x > outer.width / 2;
      tip.style.left = Math.max(4, onLeft ? x - tip.offsetWidth - 14 : x + 14) + "px";
      tip.style.top = box.top - outer.top + (bottom * scale - tip.offsetHeight) / 2 + "px";
      stop = stops.indexOf(at);
    };

    const point = (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * data.size[0];
      const share = Math.min(1, Math.max(0, (x - left) / (right - left)));
      show((plot.x[0] + share * (plot.x[1] - plot.x[0])) * plot.size);
    };
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.setAttribute("tabindex", "0");
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, Home: -stops.length, End: stops.length }[event.key];
      if (event.key === "Escape") hide();
      if (!move || !stops.length) return;
      event.preventDefault();
      stop = Math.min(stops.length - 1, Math.max(0, stop + move));
      show(stops[stop]);
    });
  });
})();
