// The page: which row and round are shown, and what keys and buttons do.

const state = { row: 0, round: 0, table: false };
const THEMES = { auto: "Auto", light: "Light", dark: "Dark" };
let spans = [];
let markBar = () => {};

const tree = new TreeView((node, item) => showCard(node, item));
const rounds = () => trace.rows[state.row].rounds;

/** The numbers of a node beside its shape, or nothing. */
function showCard(node, item) {
  const card = byId("card");
  card.hidden = !node;
  if (!node) return;
  const list = element("dl");
  for (const [name, value] of numbersOf(node)) list.append(element("dt", "", name), element("dd", "", value));
  card.replaceChildren(element("strong", "", visible(node.text)), element("p", "", node.fate), list);
  const box = item.getBoundingClientRect();
  const right = box.right + 10 + card.offsetWidth < innerWidth;
  const left = right ? box.right + 10 : Math.max(4, box.left - card.offsetWidth - 10);
  const top = Math.min(Math.max(4, box.top - 12), innerHeight - card.offsetHeight - 4);
  card.style.left = `${left}px`;
  card.style.top = `${top}px`;
}

function showToken(span, token, place) {
  if (!span) return showCard(null);
  return showCard(nodesOf(rounds()[place])[token.id], span);
}

function showRow(row) {
  state.row = row;
  spans = textOf(trace.rows[row], showRound, showToken);
  markBar = timeline(rounds(), showRound);
  makeRoom();
  byId("slider").max = Math.max(1, rounds().length);
  showRound(opening());
}

/** The first round with several accepted tokens, else the first with a tree, else the first. */
function opening() {
  const several = rounds().findIndex((round) => round.path.length > 2);
  const drafted = rounds().findIndex((round) => round.tree.tokens.length > 1);
  return Math.max(0, several < 0 ? drafted : several);
}

/** The frame's height depends on the window; a hidden frame has none. */
function makeRoom() {
  byId("frame").hidden = false;
  tree.makeRoom(rounds());
  byId("frame").hidden = state.table;
}

function showRound(place) {
  const count = rounds().length;
  state.round = Math.max(0, Math.min(count - 1, place));
  byId("place").textContent = count ? `${state.round + 1} of ${count}` : "none";
  const slider = byId("slider");
  slider.value = state.round + 1;
  slider.setAttribute("aria-valuetext", `Round ${state.round + 1} of ${count}`);
  for (const id of ["first", "previous"]) byId(id).disabled = state.round === 0;
  for (const id of ["next", "last"]) byId(id).disabled = state.round >= count - 1;
  slider.disabled = count < 2;
  showCard(null);
  if (!count) {
    byId("summary").textContent = "This row has no round.";
    tree.nodes = [];
    byId("tree").replaceChildren();
    byId("table").replaceChildren();
    return;
  }
  const round = rounds()[state.round];
  const sentences = summaryOf(round, state.round + 1, count, trace.rows.length > 1);
  byId("summary").replaceChildren(...sentences.flatMap((one) => [element("span", "", one), " "]));
  showTokens(spans, state.round);
  markBar(state.round);
  tree.show(round);
  showTable();
}

function showTable() {
  byId("frame").hidden = byId("zooming").hidden = state.table;
  byId("table").hidden = !state.table;
  byId("as-table").setAttribute("aria-pressed", String(state.table));
  if (!rounds().length) return;
  if (state.table) byId("table").replaceChildren(tableOf(rounds()[state.round]));
  else tree.draw();
}

function nextTheme() {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length]);
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  byId("theme").textContent = `◐ ${THEMES[name]}`;
  byId("theme").setAttribute("aria-label", `Colours: ${THEMES[name]}`);
}

const STEPS = {
  ArrowLeft: () => showRound(state.round - 1),
  ArrowRight: () => showRound(state.round + 1),
  PageUp: () => showRound(state.round - 1),
  PageDown: () => showRound(state.round + 1),
  Home: () => showRound(0),
  End: () => showRound(rounds().length - 1),
};
const onTree = (act) => () => {
  if (rounds().length && !state.table) act();
};
const COMMANDS = {
  "+": onTree(() => tree.zoom(1.5)),
  "=": onTree(() => tree.zoom(1.5)),
  "-": onTree(() => tree.zoom(1 / 1.5)),
  0: onTree(() => tree.fit()),
  p: onTree(() => tree.follow()),
  t: () => toggleTable(),
  d: () => nextTheme(),
  "?": () => byId("help").showModal(),
};

function toggleTable() {
  state.table = !state.table;
  showTable();
}

/** What a key means where the focus is; undefined leaves it to the browser. */
function meaning(event) {
  const { key, target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return undefined;
  if (target === tree.svg) {
    if (key === "Escape") return () => tree.svg.blur();
    if (!key.startsWith("Page") && key in STEPS) return () => tree.walk(key);
    if (key === "ArrowUp" || key === "ArrowDown") return () => tree.walk(key);
  } else if (target.closest("select, input") && key in STEPS) {
    return undefined; // a slider and a list have these keys themselves
  } else if (key.startsWith("Page")) {
    return undefined; // the page scrolls
  }
  return STEPS[key] ?? COMMANDS[key.toLowerCase()];
}

function listen() {
  document.addEventListener("keydown", (event) => {
    const act = meaning(event);
    if (!act) return;
    event.preventDefault();
    act();
  });
  const clicks = {
    first: STEPS.Home, previous: STEPS.ArrowLeft, next: STEPS.ArrowRight, last: STEPS.End,
    in: COMMANDS["+"], out: COMMANDS["-"], fit: COMMANDS[0], follow: COMMANDS.p,
    "as-table": toggleTable, theme: nextTheme, "help-open": COMMANDS["?"],
  };
  for (const [id, act] of Object.entries(clicks)) byId(id).addEventListener("click", act);
  byId("slider").addEventListener("input", (event) => showRound(Number(event.target.value) - 1));
  byId("row").addEventListener("change", (event) => showRow(Number(event.target.value)));
  let resized = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(resized);
    resized = requestAnimationFrame(() => {
      markBar = timeline(rounds(), showRound);
      makeRoom();
      showRound(state.round);
    });
  });
}

function start() {
  const { statistics: s, settings } = trace;
  const count = trace.rows.reduce((sum, row) => sum + row.rounds.length, 0);
  byId("totals").textContent = [
    `${plural(s.new_tokens, "token")} in ${duration(s.seconds)} (prefill ${duration(s.prefill_seconds)})`,
    plural(count, "round"),
    `${s.tokens_per_round.toFixed(2)} tokens a round`,
    `${(100 * s.acceptance_rate).toFixed(s.acceptance_rate < 0.1 ? 1 : 0)} % of drafted tokens accepted`,
  ].join(" · ");
  for (const [name, value] of Object.entries({ ...settings, created: trace.created })) {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    byId("settings").append(element("dt", "", name.replaceAll("_", " ")), element("dd", "", text));
  }
  for (let depth = 1; depth <= DEPTHS; depth++) {
    const text = depth < DEPTHS ? String(depth) : `${depth}+`;
    byId("depths").append(element("span", `token ${depthClass(depth)}`, text));
  }
  trace.rows.forEach((row, i) => {
    const option = element("option", "", `${i + 1} of ${trace.rows.length}: ${row.prompt.trim().slice(0, 32)}`);
    option.value = i;
    byId("row").append(option);
  });
  byId("row-chooser").hidden = trace.rows.length < 2;
  setTheme("auto");
  listen();
  if (trace.rows.length) showRow(0);
}

start();
