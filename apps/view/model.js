// The trace, and what follows from it. Its texts are data: they reach the page as text nodes alone.

const trace = JSON.parse(document.getElementById("trace").textContent);
const DEPTHS = 8; // deeper tokens share the last colour

const byId = (id) => document.getElementById(id);

/** An HTML element with a class and a text. */
function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

/** An SVG element with attributes. */
function shape(name, attributes = {}) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

function probability(p) {
  if (p === 0 || p === 1) return String(p);
  return p < 1e-4 ? p.toExponential(1) : p < 0.1 ? p.toFixed(4) : p.toFixed(3);
}

/** Short enough for a node: no leading zero. */
function brief(p) {
  return p >= 0.995 ? "1" : p < 0.005 ? "0" : p.toFixed(2).slice(1);
}

function duration(seconds) {
  if (seconds >= 1) return `${seconds.toFixed(2)}\u00a0s`;
  const ms = seconds * 1e3;
  return `${ms >= 100 ? ms.toFixed(0) : ms >= 10 ? ms.toFixed(1) : ms.toFixed(2)}\u00a0ms`;
}

/** A token's text with what is invisible in it made visible. */
function visible(text) {
  if (text === "") return "∅";
  return text.replace(/[\s\p{C}]/gu, (one) => {
    if (one === " ") return "␣";
    if (one === "\n") return "↵";
    if (one === "\t") return "⇥";
    return `⟨${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

const quoted = (text) => `“${visible(text)}”`;

/** The class that colours an accepted token or node. */
const depthClass = (depth) => `accepted d${Math.min(depth, DEPTHS)}`;

/**
 * The nodes of a round's tree in its own order, and behind them the round's extra token, which is no
 * node of the drafted tree, as a child of the path's end.
 */
function nodesOf(round) {
  const { tree, path, extra } = round;
  const onPath = new Set(path);
  const nodes = tree.tokens.map((token, id) => ({
    id,
    token,
    text: tree.texts[id],
    parent: tree.parents[id],
    children: [],
    draft: tree.draft[id],
    target: tree.target[id],
    lit: onPath.has(id),
  }));
  const end = path[path.length - 1];
  nodes.push({
    id: nodes.length,
    token: extra.token,
    text: extra.text,
    parent: end,
    children: [],
    draft: null,
    target: extra.target,
    lit: true,
    extra: extra.bonus ? "bonus" : "residual",
  });
  for (const node of nodes) {
    const above = nodes[node.parent];
    node.depth = above ? above.depth + 1 : 0;
    node.targetPath = above ? above.targetPath * node.target : 1;
    node.draftPath = above && node.draft !== null ? above.draftPath * node.draft : 1;
    node.fate = fateOf(node, above);
    above?.children.push(node.id);
  }
  return nodes;
}

function fateOf(node, above) {
  if (node.extra === "bonus") return "bonus, drawn from the target at the path's end";
  if (node.extra) return "residual, the correction after a rejection";
  if (!above) return "root, the last token before this round";
  if (node.lit) return "accepted";
  return above.lit ? "not accepted" : "below a node that was not accepted";
}

/** The numbers of a node, as pairs of name and value. */
function numbersOf(node) {
  const found = [["token id", String(node.token)]];
  if (node.parent < 0) return found;
  found.push(["depth", String(node.depth)]);
  if (node.draft !== null) found.push(["draft probability", probability(node.draft)]);
  found.push(["target probability", probability(node.target)]);
  if (node.draft) found.push(["target / draft", (node.target / node.draft).toPrecision(3)]);
  if (node.draft !== null) found.push(["draft, whole path", probability(node.draftPath)]);
  found.push(["target, whole path", probability(node.targetPath)]);
  return found;
}

/** A node in one sentence, for a screen reader. */
function sentenceOf(node) {
  const numbers = numbersOf(node).map(([name, value]) => `${name} ${value}`);
  return `${quoted(node.text)}, ${node.fate}; ${numbers.join(", ")}`;
}

/** What happened in a round: a sentence for the tokens, and one for the time. */
function summaryOf(round, place, count, shared) {
  const drafted = round.tree.tokens.length - 1;
  const accepted = round.path.slice(1).map((id) => round.tree.texts[id]);
  const added = round.texts.length;
  const tokens = [
    `Round ${place} of ${count}: ${accepted.length} of ${plural(drafted, "drafted token")} accepted`,
    accepted.length ? ` (${quoted(accepted.join(""))})` : "",
    `, then the ${round.extra.bonus ? "bonus" : "residual"} ${quoted(round.extra.text)}.`,
    added <= accepted.length ? ` The text ended after ${plural(added, "token")} of these.` : "",
  ];
  const time = [
    `${duration(round.seconds)}${shared ? " for all rows" : ""}: draft ${duration(round.draft_seconds)} in `,
    `${plural(round.draft_calls, "call")}, target ${duration(round.target_seconds)}, `,
    `rest ${duration(restOf(round))}, of it verification ${duration(round.verify_seconds)}.`,
  ];
  return [tokens.join(""), time.join("")];
}

const restOf = (round) => Math.max(0, round.seconds - round.draft_seconds - round.target_seconds);
