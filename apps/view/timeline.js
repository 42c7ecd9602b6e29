// A bar for each round: draft, target and the rest, from the bottom up.

const HEIGHT = 64;

/** The bars; returns a function that marks one of them. */
function timeline(rounds, onRound) {
  const panel = byId("time");
  panel.replaceChildren();
  byId("scale").textContent = "";
  if (!rounds.length) return () => {};
  const width = Math.min(36, Math.max(5, (panel.clientWidth - 24) / rounds.length));
  const longest = tallest(rounds.map((round) => round.seconds));
  const scale = (HEIGHT - 4) / (longest || 1);
  const svg = shape("svg", { width: width * rounds.length, height: HEIGHT + 3, role: "img" });
  svg.setAttribute("aria-label", `Time of ${plural(rounds.length, "round")}; ${timesOf(rounds)}`);
  const bars = rounds.map((round, place) => {
    const bar = shape("g", { class: "bar", transform: `translate(${place * width},0)` });
    bar.append(shape("rect", { class: "back", width, height: HEIGHT }));
    const gap = width > 8 ? 2 : 0.5;
    const cut = round.seconds > longest;
    const shrink = cut ? longest / round.seconds : 1;
    let y = HEIGHT;
    for (const [name, seconds] of partsOf(round)) {
      const height = Math.max(0, seconds) * scale * shrink;
      y -= height;
      bar.append(shape("rect", { class: name, x: gap / 2, y, width: width - gap, height }));
    }
    bar.append(shape("rect", { class: "sign", y: HEIGHT, width, height: 3 }));
    if (cut) bar.append(shape("path", { class: "cut", d: `M0 9 L${width} 5 V8 L0 12 Z` }));
    const title = shape("title");
    const parts = partsOf(round).map(([name, seconds]) => `${name} ${duration(seconds)}`);
    title.textContent = `Round ${place + 1}: ${duration(round.seconds)} (${parts.join(", ")})`;
    bar.append(title);
    bar.addEventListener("click", () => onRound(place));
    svg.append(bar);
    return bar;
  });
  panel.append(svg);
  const some = rounds.some((round) => round.seconds > longest);
  byId("scale").textContent = `full height ${duration(longest)}${some ? "; longer bars are cut" : ""}`;
  return (place) => {
    bars.forEach((bar, i) => bar.classList.toggle("now", i === place));
    const x = place * width;
    if (x < panel.scrollLeft || x + width > panel.scrollLeft + panel.clientWidth - 24) {
      panel.scrollLeft = x - panel.clientWidth / 2;
    }
  };
}

const partsOf = (round) => [
  ["draft", round.draft_seconds],
  ["target", round.target_seconds],
  ["rest", restOf(round)],
];

/** The longest time, or a bit more than most where a few (the first, as a rule) dwarf all others. */
function tallest(times) {
  const sorted = [...times].sort((a, b) => a - b);
  const usual = sorted[Math.floor((sorted.length - 1) * 0.9)] * 2;
  return Math.min(sorted.at(-1), usual);
}

function timesOf(rounds) {
  const totals = rounds.map(partsOf).reduce((sum, parts) => sum.map((s, i) => s + parts[i][1]), [0, 0, 0]);
  const [draft, target, rest] = totals.map(duration);
  return `in all draft ${draft}, target ${target}, rest ${rest}`;
}
