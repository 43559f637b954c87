(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const canvas = document.getElementById("canvas");
  const said = document.getElementById("said");
  const tip = document.getElementById("tip");
  const go = document.getElementById("go");
  const [NAME, KIND, ROW, BEGUN, TAKES, DETAILS] = [0, 1, 2, 3, 4, 5];
  const GUTTER = 76, AXIS = 22, GAP = 10, FLIGHT = 56;
  const COLORS = {
    step: "step", launch: "step", end: "step", run: "run", loop: "loop",
    "multiplying loop": "multiply", iteration: "iteration", wait: "wait",
    read: "read", write: "write", inner: "step",
  };
  const TITLES = { steps: "Step", core: "Core", read: "Reads", write: "Writes", inner: "In core" };

  // Each track has as many rows as its slices need, and becomes no higher than `most`.
  const tracks = [];
  let top = AXIS;
  for (const [name, slices] of Object.entries(data.tracks)) {
    if (!slices.length) continue;
    const rows = 1 + slices.reduce((most, each) => Math.max(most, each[ROW]), 0);
    const most = name === "steps" || name === "core" ? rows * 18 : 150;
    const height = Math.min(18, Math.max(1.5, most / rows));
    tracks.push({ name, slices, rows, height, top });
    top += rows * height + GAP;
  }
  const flightTop = top;
  const height = flightTop + FLIGHT + GAP;
  const highest = data.inFlight.reduce((most, each) => Math.max(most, each[1] + each[2]), 1);
  const end = Math.max(1, ...data.tracks.steps.map((each) => each[BEGUN] + each[TAKES]));

  let from = 0, to = end, width = 0, chosen = null, colors = {};

  const x = (time) => GUTTER + (time - from) / (to - from) * (width - GUTTER);
  const timeAt = (place) => from + (place - GUTTER) / (width - GUTTER) * (to - from);
  const shown = (time) => `${(time / 1000).toFixed(3)} us`;

  const move = (begin, length) => {
    const long = Math.min(end, Math.max(20, length));
    from = Math.min(end - long, Math.max(0, begin));
    to = from + long;
    draw();
  };
  const zoom = (factor, around) => move(around - (around - from) * factor, (to - from) * factor);

  const describe = (each) => {
    const details = data.names[each[DETAILS]];
    return `${data.names[each[NAME]]}: ${shown(each[TAKES])} from ${shown(each[BEGUN])}` +
      (details ? ` (${details})` : "");
  };
  const choose = (track, index) => {
    chosen = { track, index };
    const each = track.slices[index];
    said.value = `${TITLES[track.name]}: ${describe(each)}`;
    const middle = each[BEGUN] + each[TAKES] / 2;
    if (middle < from || middle > to) move(middle - (to - from) / 2, to - from);
    else draw();
  };

  const axis = (pen) => {
    const rough = (to - from) / Math.max(2, (width - GUTTER) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    pen.textAlign = "center";
    for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
      const at = Math.round(x(time)) + 0.5;
      pen.fillStyle = colors.line;
      pen.fillRect(at, AXIS - 4, 1, height);
      pen.fillStyle = colors.faint;
      const text = `${+(time / 1000).toFixed(3)} us`;
      const half = pen.measureText(text).width / 2;
      pen.fillText(text, Math.min(at, width - half - 2), AXIS / 2);
    }
    pen.textAlign = "left";
  };

  const draw = () => {
    const scale = devicePixelRatio || 1;
    width = canvas.clientWidth;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.clearRect(0, 0, width, height);
    pen.font = "11px sans-serif";
    pen.textBaseline = "middle";
    axis(pen);
    for (const track of tracks) {
      const last = new Float64Array(track.rows).fill(-1);
      track.slices.forEach((each, index) => {
        const left = Math.max(GUTTER, x(each[BEGUN]));
        const right = Math.min(width, x(each[BEGUN] + each[TAKES]));
        const isChosen = chosen && chosen.track === track && chosen.index === index;
        if (right < GUTTER || left > width || (right <= last[each[ROW]] && !isChosen)) return;
        const wide = Math.max(0.6, right - left - (right - left > 4 ? 0.6 : 0));
        last[each[ROW]] = left + wide;
        const above = track.top + each[ROW] * track.height;
        const kind = data.names[each[KIND]];
        pen.fillStyle = colors[COLORS[kind]];
        pen.fillRect(left, above, wide, track.height - (track.height > 4 ? 1 : 0.3));
        if (track.height >= 12 && wide > 34) {
          const name = data.names[each[NAME]];
          const most = Math.floor((wide - 6) / 5.6);
          pen.fillStyle = kind === "run" || kind === "iteration" ? colors.text : colors.over;
          pen.fillText(name.length > most ? `${name.slice(0, Math.max(0, most - 1))}…` : name,
            left + 3, above + track.height / 2, wide - 4);
        }
        if (isChosen) {
          pen.strokeStyle = colors.text;
          pen.lineWidth = 2;
          pen.strokeRect(left, above - 1, Math.max(2, wide), track.height + 1);
        }
      });
    }
    flight(pen);
    pen.clearRect(0, AXIS - 4, GUTTER - 1, height);
    pen.fillStyle = colors.faint;
    for (const track of tracks) pen.fillText(TITLES[track.name], 4, track.top + 8);
    pen.fillText("In flight", 4, flightTop + 8);
    pen.fillText(`${(highest / 1048576).toPrecision(3)} MiB`, 4, flightTop + 22);
  };

  // Bytes in flight: reads at the bottom, writes on top of them, the highest of each pixel.
  const flight = (pen) => {
    const base = flightTop + FLIGHT;
    pen.fillStyle = colors.line;
    pen.fillRect(GUTTER, base, width - GUTTER, 1);
    const most = new Map();
    data.inFlight.forEach((each, index) => {
      const next = data.inFlight[index + 1];
      const left = Math.max(GUTTER, Math.floor(x(each[0])));
      const right = Math.min(width, next ? Math.ceil(x(next[0])) : width);
      if (!(each[1] + each[2]) || right < GUTTER) return;
      for (let at = left; at < right; at++) {
        const held = most.get(at);
        if (!held || held[1] + held[2] < each[1] + each[2]) most.set(at, each);
      }
    });
    for (const [at, each] of most) {
      const reads = each[1] / highest * FLIGHT, writes = each[2] / highest * FLIGHT;
      pen.fillStyle = colors.read;
      pen.fillRect(at, base - reads, 1, reads);
      pen.fillStyle = colors.write;
      pen.fillRect(at, base - reads - writes, 1, writes);
    }
  };

  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const place = event.clientX - box.left, row = event.clientY - box.top;
    if (place < GUTTER) return null;
    const time = timeAt(place), near = (to - from) / (width - GUTTER) * 2;
    for (const track of tracks) {
      const number = Math.floor((row - track.top) / track.height);
      if (number < 0 || number >= track.rows) continue;
      const index = track.slices.findIndex((each) => each[ROW] === number &&
        each[BEGUN] - near <= time && time <= each[BEGUN] + each[TAKES] + near);
      if (index >= 0) return { track, index };
    }
    return null;
  };

  let dragged = null;
  canvas.addEventListener("pointerdown", (event) => {
    dragged = { at: event.clientX, from, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (dragged) {
      const by = (event.clientX - dragged.at) / (width - GUTTER) * (to - from);
      dragged.moved ||= Math.abs(event.clientX - dragged.at) > 3;
      if (dragged.moved) move(dragged.from - by, to - from);
      tip.hidden = true;
      return;
    }
    const found = under(event);
    tip.hidden = !found;
    if (!found) return;
    tip.textContent = describe(found.track.slices[found.index]);
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
  });
  canvas.addEventListener("pointerup", (event) => {
    const found = dragged && !dragged.moved && under(event);
    dragged = null;
    if (found) choose(found.track, found.index);
  });
  canvas.addEventListener("pointercancel", () => { dragged = null; });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event.clientX - canvas.getBoundingClientRect().left));
  }, { passive: false });

  const fill = (each) => move(each[BEGUN] - each[TAKES] * 0.02, each[TAKES] * 1.04);
  canvas.addEventListener("dblclick", (event) => {
    const found = under(event);
    if (found) fill(found.track.slices[found.index]);
  });

  const first = () => {
    const track = tracks[0];
    choose(track, Math.max(0, track.slices.findIndex((each) => each[BEGUN] + each[TAKES] > from)));
  };
  const along = (by) => {
    if (!chosen) return first();
    const { track, index } = chosen, row = track.slices[index][ROW];
    for (let next = index + by; next >= 0 && next < track.slices.length; next += by) {
      if (track.slices[next][ROW] === row) return choose(track, next);
    }
  };
  // The nearest slice, in time, of the next row that has one, be it of another track.
  const across = (by) => {
    if (!chosen) return first();
    const each = chosen.track.slices[chosen.index], middle = each[BEGUN] + each[TAKES] / 2;
    let place = tracks.indexOf(chosen.track), row = each[ROW] + by;
    while (place >= 0 && place < tracks.length) {
      const track = tracks[place];
      let best = -1, distance = Infinity;
      track.slices.forEach((other, index) => {
        if (other[ROW] !== row) return;
        const away = Math.max(other[BEGUN] - middle, middle - other[BEGUN] - other[TAKES], 0);
        if (away < distance) [best, distance] = [index, away];
      });
      if (best >= 0) return choose(track, best);
      place += by;
      if (place >= 0 && place < tracks.length) row = by > 0 ? 0 : tracks[place].rows - 1;
    }
  };
  const DO = {
    in: () => zoom(0.6, (from + to) / 2),
    out: () => zoom(1 / 0.6, (from + to) / 2),
    left: () => move(from - (to - from) / 5, to - from),
    right: () => move(from + (to - from) / 5, to - from),
    all: () => { go.value = ""; move(0, end); },
  };
  const KEYS = {
    "+": DO.in, "=": DO.in, "-": DO.out, ArrowLeft: DO.left, ArrowRight: DO.right, 0: DO.all,
    Home: DO.all, n: () => along(1), p: () => along(-1),
    ArrowDown: () => across(1), ArrowUp: () => across(-1),
    Enter: () => chosen && fill(chosen.track.slices[chosen.index]),
  };
  canvas.addEventListener("keydown", (event) => {
    const action = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  });
  document.getElementById("tools").addEventListener("click", (event) => {
    const action = DO[event.target.dataset.do];
    if (action) action();
  });
  data.tracks.steps.forEach((each, index) => {
    go.add(new Option(`${data.names[each[NAME]]} (${shown(each[TAKES])})`, index));
  });
  go.addEventListener("change", () => {
    if (go.value === "") DO.all();
    else fill(data.tracks.steps[go.value]);
  });

  const paint = () => {
    const style = getComputedStyle(document.documentElement);
    const named = (name) => style.getPropertyValue(`--${name}`).trim();
    for (const name of [...Object.values(COLORS), "line", "text", "faint"]) colors[name] = named(name);
    colors.over = "#fff";
    draw();
  };
  document.getElementById("picture").hidden = false;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  new ResizeObserver(() => { if (canvas.clientWidth !== width) draw(); }).observe(canvas);
  paint();
})();
