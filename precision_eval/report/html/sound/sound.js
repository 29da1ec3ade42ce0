(() => {
  "use strict";
  // Times on the page are those of the run; a stream holds only the parts of it that can be heard, one after the other.
  const STEP_S = 2;
  const LONG_STEP_S = 10;
  const clock = (t) => `${Math.floor(t / 60)}:${(t % 60).toFixed(1).padStart(4, "0")}`;

  function begin(root) {
    const duration = Number(root.dataset.duration);
    const parts = JSON.parse(root.dataset.parts);
    const rows = [...root.querySelectorAll("[data-stream]")];
    const audios = rows.map((row) => document.getElementById(row.dataset.stream));
    const lengths = rows.map((row) => Number(row.dataset.seconds));
    const button = root.querySelector(".sound-play");
    const range = root.querySelector(".sound-seek");
    const time = root.querySelector(".sound-time");
    const say = root.querySelector(".sound-say");
    let active = 0;
    let at = 0;
    let frame = 0;

    const now = () => audios[active];
    const playing = () => !now().paused;

    function toStream(t) {
      let offset = 0, best = 0, nearest = Infinity;
      for (const [start, length] of parts) {
        const inside = Math.min(Math.max(t, start), start + length);
        if (Math.abs(inside - t) < nearest) { nearest = Math.abs(inside - t); best = offset + inside - start; }
        offset += length;
      }
      return best;
    }

    function toRun(s) {
      let offset = 0, t = 0;
      for (const [start, length] of parts) {
        t = Math.min(start + s - offset, start + length);
        if (s < offset + length) break;
        offset += length;
      }
      return t;
    }

    function draw() {
      root.style.setProperty("--sound-at", String(at / duration));
      range.value = String(at);
      range.setAttribute("aria-valuetext", `${at.toFixed(1)} s of ${duration.toFixed(0)} s`);
      time.textContent = `${clock(at)} / ${clock(duration)}`;
      button.textContent = playing() ? "Pause" : "Play";
    }

    function follow() {  // the element's own clock, while it runs
      if (playing() && !now().seeking && now().readyState > 1) at = toRun(now().currentTime);
    }

    function tick() {
      follow();
      draw();
      frame = playing() ? requestAnimationFrame(tick) : 0;
    }

    function refresh() {
      if (!frame) frame = requestAnimationFrame(tick);
    }

    function start() {
      if (toStream(at) >= lengths[active] - 0.05) {
        if (at < duration - 0.1) {
          say.textContent = `${rows[active].dataset.name} ends at ${clock(toRun(lengths[active]))}.`;
          return;
        }
        at = 0;
      }
      say.textContent = "";
      now().currentTime = toStream(at);
      now().play().catch((error) => {
        if (error.name === "AbortError") return;  // another click came first
        say.textContent = `This browser does not play it (${error.name}); the WAVs are in the run's folder.`;
      });
      for (const audio of audios) audio.preload = "auto";  // so that switching is quick
      refresh();
    }

    function toggle() {
      if (playing()) { follow(); now().pause(); } else start();
    }

    function seek(t) {
      at = toRun(toStream(Math.min(Math.max(t, 0), duration)));
      say.textContent = "";
      if (playing()) now().currentTime = toStream(at);
      refresh();
    }

    function pick(index) {
      follow();
      const before = now(), ran = playing();
      active = index;
      rows.forEach((row, i) => {
        row.classList.toggle("sound-now", i === active);
        row.querySelector(".sound-pick").setAttribute("aria-pressed", String(i === active));
      });
      if (now() !== before && ran) { before.pause(); start(); }
      refresh();
    }

    function keys(event) {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const step = event.shiftKey ? LONG_STEP_S : STEP_S;
      const number = /^Digit[1-9]$/.test(event.code) ? Number(event.code.slice(5)) : 0;
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        follow();
        seek(at + (event.key === "ArrowRight" ? step : -step));
      } else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
        pick((active + (event.key === "ArrowDown" ? 1 : rows.length - 1)) % rows.length);
      } else if (number && number <= rows.length) {
        pick(number - 1);
      } else if (event.key === " " && event.target.tagName !== "BUTTON") {
        toggle();
      } else return;
      event.preventDefault();
    }

    rows.forEach((row, i) => {
      const name = row.querySelector(".sound-pick"), strip = row.querySelector(".sound-strip");
      name.disabled = false;
      name.addEventListener("click", () => (i === active ? toggle() : pick(i)));
      strip.classList.add("sound-live");
      strip.addEventListener("click", (event) => {
        const box = strip.getBoundingClientRect();
        if (i !== active) pick(i);
        seek(((event.clientX - box.left) / box.width) * duration);
        root.focus({ preventScroll: true });
      });
    });
    for (const audio of new Set(audios)) {
      audio.hidden = true;
      for (const name of ["play", "pause", "seeked", "ended"]) audio.addEventListener(name, refresh);
    }
    for (const hidden of root.querySelectorAll(".sound-bar, .sound-keys")) hidden.hidden = false;
    button.addEventListener("click", toggle);
    range.addEventListener("input", () => seek(Number(range.value)));
    root.tabIndex = 0;
    root.addEventListener("keydown", keys);
    pick(0);
  }

  for (const root of document.querySelectorAll(".sound-player[data-parts]")) begin(root);
})();
