"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const tip = document.getElementById("tip");

  const show = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, x - box.width / 2), document.documentElement.clientWidth - box.width - 8);
    const above = y - box.height - 14;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 4 ? above : y + 18}px`;
  };

  const hide = () => {
    tip.hidden = true;
    all(".focus").forEach((dot) => dot.remove());
  };

  // The points of a chart are written next to each line as "x y text|x y text"; parsed when first needed.
  const known = new WeakMap();
  const pointsOf = (chart) => {
    if (!known.has(chart)) {
      known.set(chart, all("g[data-points]", chart).flatMap((group) => group.dataset.points.split("|").map((part) => {
        const [x, y, ...words] = part.split(" ");
        const name = group.dataset.name;
        return { group, x: +x, y: +y, text: (name ? `${name}: ` : "") + words.join(" ") };
      })));
    }
    return known.get(chart);
  };

  const nearest = (chart, x, y) => {
    let best = null, least = 36 * 36;
    for (const point of pointsOf(chart)) {
      const distance = (point.x - x) ** 2 + (point.y - y) ** 2;
      if (distance < least) [best, least] = [point, distance];
    }
    return best;
  };

  const focus = (point) => {
    const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    for (const [name, value] of Object.entries({ cx: point.x, cy: point.y, r: 5, class: "focus" })) dot.setAttribute(name, value);
    point.group.append(dot);
  };

  const look = (event) => {
    hide();
    const chart = event.target.closest?.("svg.chart");
    if (!chart) return;
    const told = event.target.closest("[data-tip]");
    if (told) return show(told.dataset.tip, event.clientX, event.clientY);
    const matrix = chart.getScreenCTM();
    if (!chart.matches(".curves") || !matrix) return;
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
    const point = nearest(chart, place.x, place.y);
    if (!point) return;
    focus(point);
    const screen = new DOMPoint(point.x, point.y).matrixTransform(matrix);
    show(point.text, screen.x, screen.y);
  };
  document.addEventListener("pointermove", look);
  document.addEventListener("pointerdown", look);
  document.addEventListener("scroll", hide, { passive: true });
  document.addEventListener("pointerleave", hide);

  // A frame that holds more than it shows says so, until its end is in sight.
  const hint = (frame) => {
    frame.classList.toggle("more", frame.scrollWidth > frame.clientWidth + 1);
    frame.classList.toggle("end", frame.scrollLeft + frame.clientWidth >= frame.scrollWidth - 2);
  };
  const hintAll = () => all(".scroll").forEach(hint);
  all(".scroll").forEach((frame) => frame.addEventListener("scroll", () => hint(frame), { passive: true }));
  addEventListener("resize", hintAll);
  all("details").forEach((fold) => fold.addEventListener("toggle", hintAll));
  hintAll();

  const curves = document.getElementById("curves");
  const scale = document.getElementById("scale");
  if (curves && scale) {
    scale.checked = curves.dataset.scale === "log";
    scale.addEventListener("change", () => { curves.dataset.scale = scale.checked ? "log" : "linear"; });
  }
  all('input[name="metric"]').forEach((input) => input.addEventListener("change", () => {
    all("[data-metric]").forEach((group) => { group.hidden = group.dataset.metric !== input.value; });
  }));

  // Sorting: numbers from the highest, words from A; a second press turns it round; what has no value stays last.
  all("table.ranking").forEach((table) => all("thead button", table).forEach((button) => button.addEventListener("click", () => {
    const head = button.closest("th"), column = [...head.parentNode.children].indexOf(head);
    const rows = all("tbody tr", table);
    const read = (row) => row.children[column].dataset.value ?? "";
    const words = rows.some((row) => read(row) !== "" && Number.isNaN(+read(row)));
    const turned = head.getAttribute("aria-sort") === (words ? "ascending" : "descending");
    const compare = (a, b) => (words ? read(a).localeCompare(read(b)) : +read(b) - +read(a)) * (turned ? -1 : 1);
    rows.sort((a, b) => (read(a) === "") - (read(b) === "") || compare(a, b));
    all("thead th", table).forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", words !== turned ? "ascending" : "descending");
    table.tBodies[0].append(...rows);
  })));

  all(".legend button").forEach((button) => button.addEventListener("click", () => {
    const pressed = button.getAttribute("aria-pressed") !== "true";
    all(".legend button").forEach((other) => other.setAttribute("aria-pressed", String(pressed && other === button)));
    all("g.series[data-run]").forEach((group) => {
      group.classList.toggle("back", pressed && group.dataset.run !== button.dataset.run);
    });
  }));
})();
