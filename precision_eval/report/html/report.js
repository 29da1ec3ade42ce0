"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const panel = document.getElementById("tip");

  function written(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 0.01 && size < 1e4) return String(Number(value.toPrecision(3)));
    return value.toExponential(1).replace("+", "");
  }

  function show(content, x, y) {
    panel.replaceChildren(...content);
    panel.hidden = false;
    const box = panel.getBoundingClientRect();
    const right = x + 16 + box.width < innerWidth;
    panel.style.left = Math.max(8, right ? x + 16 : x - 16 - box.width) + "px";
    panel.style.top = Math.max(8, Math.min(y - box.height / 2, innerHeight - box.height - 8)) + "px";
  }

  function hide() {
    panel.hidden = true;
    panel.replaceChildren();
    document.querySelectorAll(".mark.on").forEach((one) => one.classList.remove("on"));
    document.querySelectorAll(".cross:not([hidden])").forEach((one) => one.setAttribute("hidden", ""));
  }

  /* Marks: hover and focus show the hidden list of everything recorded. */
  const placeOf = (mark) => {
    const box = mark.getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2];
  };

  function showMark(mark) {
    hide();
    const tip = document.getElementById(mark.dataset.tip).cloneNode(true);
    tip.removeAttribute("id");
    mark.classList.add("on");
    const svg = mark.ownerSVGElement;
    const [x, y] = placeOf(mark);
    const near = [...svg.querySelectorAll(".mark")].filter((one) => {
      const [a, b] = placeOf(one);
      return one !== mark && Math.hypot(a - x, b - y) < 8;
    });
    if (near.length) {
      const also = document.createElement("p");
      also.className = "faint";
      also.textContent = `At the same place, one arrow key away: ${near.map((one) => one.dataset.fix).join(", ")}`;
      tip.append(also);
    }
    show([tip], x, y);
  }

  function walkMarks(svg) {
    const marks = [...svg.querySelectorAll(".mark")];
    let current = -1;
    const go = (place) => {
      current = Math.max(0, Math.min(marks.length - 1, place));
      marks[current].focus({ preventScroll: true });
    };
    marks.forEach((mark, place) => {
      mark.addEventListener("pointerenter", () => showMark(mark));
      mark.addEventListener("pointerleave", hide);
      mark.addEventListener("focus", () => { current = place; showMark(mark); });
      mark.addEventListener("blur", hide);
    });
    svg.addEventListener("focus", (event) => { if (event.target === svg && marks.length && svg.matches(":focus-visible")) showMark(marks[Math.max(0, current)]); });
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
      if (event.key in steps) { go(current + steps[event.key]); event.preventDefault(); }
      else if (event.key === "Home" || event.key === "End") { go(event.key === "Home" ? 0 : marks.length - 1); event.preventDefault(); }
      else if (event.key === "Escape") hide();
    });
  }

  /* Lines: the values of every line at the place that is pointed at. */
  function scaleOf(text) {
    const [kind, ...ends] = text.split(" ");
    const [low, high, start, end] = ends.map(Number);
    const of = kind === "log" ? Math.log : (value) => value;
    return (value) => start + (of(value) - of(low)) / (of(high) - of(low)) * (end - start);
  }

  function nearest(times, time) {
    let best = 0;
    times.forEach((one, place) => { if (Math.abs(one - time) < Math.abs(times[best] - time)) best = place; });
    return best;
  }

  function walkLines(svg) {
    const source = document.querySelector(`script[data-for="${svg.id}"]`);
    if (!source) return;
    const data = JSON.parse(source.textContent);
    const [x, y] = [scaleOf(svg.dataset.sx), scaleOf(svg.dataset.sy)];
    const longest = data.lines.reduce((one, other) => other.t.length > one.t.length ? other : one);
    const cross = document.createElementNS(SVG, "g");
    cross.setAttribute("class", "cross");
    cross.setAttribute("hidden", "");
    cross.append(document.createElementNS(SVG, "line"));
    const ends = svg.dataset.sy.split(" ").slice(3);
    cross.firstChild.setAttribute("y1", ends[0]);
    cross.firstChild.setAttribute("y2", ends[1]);
    svg.append(cross);
    let current = -1;

    function showAt(place) {
      hide();
      current = Math.max(0, Math.min(longest.t.length - 1, place));
      const time = longest.t[current];
      const list = document.createElement("dl");
      const dots = [];
      data.lines.map((line) => ({ line, k: nearest(line.t, time) })).sort((a, b) => b.line.v[b.k] - a.line.v[a.k]).forEach(({ line, k }) => {
        const row = document.createElement("div");
        const name = document.createElement("dt");
        const chip = document.querySelector(`[data-pick="${CSS.escape(line.name)}"] .fix`);
        name.append(chip ? chip.cloneNode(true) : line.name);
        const value = document.createElement("dd");
        const number = document.createElement("span");
        number.dataset.v = String(line.v[k]);
        number.dataset.record = line.record;
        number.dataset.path = `${line.path}/${line.i[k]}`;
        number.textContent = written(line.v[k]);
        value.append(number);
        row.append(name, value);
        list.append(row);
        const py = y(line.v[k]);
        if (!Number.isFinite(py)) return;
        const dot = document.createElementNS(SVG, "circle");
        dot.setAttribute("class", chip ? [...chip.classList].find((name) => /^f\d+$/.test(name)) : "");
        dot.setAttribute("cx", x(line.t[k] / data.unit_s));
        dot.setAttribute("cy", py);
        dot.setAttribute("r", 3.5);
        dots.push(dot);
      });
      const head = document.createElement("h5");
      head.textContent = `${written(time / data.unit_s)} ${data.unit}`;
      const px = x(time / data.unit_s);
      const line = cross.querySelector("line");
      line.setAttribute("x1", px);
      line.setAttribute("x2", px);
      cross.replaceChildren(line, ...dots);
      cross.removeAttribute("hidden");
      const at = new DOMPoint(px, Number(line.getAttribute("y2"))).matrixTransform(svg.getScreenCTM());
      show([head, list], at.x, at.y + 60);
    }

    svg.addEventListener("pointermove", (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const pixels = longest.t.map((time) => x(time / data.unit_s));
      if (at.x < pixels[0] - 12 || at.x > pixels[pixels.length - 1] + 12) hide();
      else showAt(nearest(pixels, at.x));
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) showAt(Math.max(0, current)); });
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const step = Math.max(1, Math.round(longest.t.length / 40));
      const places = { ArrowRight: current + 1, ArrowLeft: current - 1, ArrowUp: current + step, ArrowDown: current - step, Home: 0, End: longest.t.length - 1 };
      if (event.key in places) { showAt(places[event.key]); event.preventDefault(); }
      else if (event.key === "Escape") hide();
    });
  }

  document.querySelectorAll("svg.chart").forEach((svg) => (svg.dataset.kind === "lines" ? walkLines(svg) : walkMarks(svg)));
  addEventListener("scroll", hide, { passive: true });

  /* Fixes that are picked out: the others fade everywhere. */
  const picked = new Set();
  document.querySelectorAll("[data-pick]").forEach((item) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "pick out in every chart";
    button.setAttribute("aria-pressed", "false");
    button.append(...item.childNodes);
    item.append(button);
    button.addEventListener("click", () => {
      const fix = item.dataset.pick;
      if (!picked.delete(fix)) picked.add(fix);
      button.setAttribute("aria-pressed", String(picked.has(fix)));
      document.body.classList.toggle("dim", picked.size > 0);
      document.querySelectorAll("[data-fix]").forEach((one) => one.classList.toggle("picked", picked.has(one.dataset.fix)));
    });
  });

  /* One case at a time, where there are several. */
  const cases = [...new Set([...document.querySelectorAll("[data-case]")].map((one) => one.dataset.case))];
  if (cases.length > 1) {
    const item = document.createElement("li");
    const choice = document.createElement("select");
    choice.setAttribute("aria-label", "case");
    choice.append(new Option("every case", ""), ...cases.map((name) => new Option(name, name)));
    choice.addEventListener("change", () => {
      document.querySelectorAll("[data-case]").forEach((one) => { one.hidden = choice.value !== "" && one.dataset.case !== choice.value; });
    });
    item.append(choice);
    document.querySelector("#fixes ul").prepend(item);
  }

  /* A link to a group opens it; print opens everything. */
  function open() {
    const target = location.hash ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
    if (target instanceof HTMLDetailsElement) { target.open = true; target.scrollIntoView(); }
  }
  addEventListener("hashchange", open);
  open();
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
})();
