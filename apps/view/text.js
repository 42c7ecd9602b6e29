// The text, a span for each token, coloured by how it came.

/** The prompt and every token of a row; `spans[r]` are those of round r. */
function textOf(row, onRound, onHover) {
  const panel = byId("text");
  panel.replaceChildren();
  panel.scrollTop = 0;
  panel.append(element("span", "token prompt", row.prompt));
  const spans = row.rounds.map((round, place) =>
    round.texts.map((text, i) => {
      const node = tokenOf(round, i);
      const span = spelled(text, node.text);
      span.className = `token ${node.kind}`;
      span.addEventListener("click", () => onRound(place));
      span.addEventListener("pointerenter", () => onHover(span, node, place));
      span.addEventListener("pointerleave", () => onHover(null));
      panel.append(span);
      return span;
    }),
  );
  const last = row.rounds.length;
  if (last === 0) panel.append(element("span", "note", " The row ended before its first round."));
  panel.append(element("span", "note", ` ■ ${ENDS[row.finished] ?? row.finished}`));
  return spans;
}

const ENDS = {
  eos: "end of text",
  length: "as long as asked for",
  context: "the context is full",
  criteria: "a stop condition",
  interrupted: "interrupted",
};

/** The i-th token that a round added: its node's text, and how it came. */
function tokenOf(round, i) {
  const id = round.path[i + 1];
  return id === undefined
    ? { text: round.extra.text, kind: round.extra.bonus ? "bonus" : "residual", id: round.tree.tokens.length }
    : { text: round.tree.texts[id], kind: depthClass(i + 1), id };
}

/** A span with `text`; line breaks and tokens that add nothing get a mark, which is not copied. */
function spelled(text, raw) {
  const span = element("span");
  if (text === "") {
    span.append(mark(raw.includes("\uFFFD") || raw === "" ? "·" : visible(raw)));
    return span;
  }
  text.split("\n").forEach((line, i) => {
    if (i) span.append(mark("↵"), "\n");
    if (line) span.append(line);
  });
  return span;
}

function mark(text) {
  const made = element("span", "mark", text);
  made.setAttribute("aria-hidden", "true");
  return made;
}

/** Light the tokens of one round, and bring them into the panel. */
function showTokens(spans, place) {
  const panel = byId("text");
  for (const lit of panel.querySelectorAll(".now")) lit.classList.remove("now");
  const here = spans[place] ?? [];
  for (const span of here) span.classList.add("now");
  if (!here.length) return;
  const frame = panel.getBoundingClientRect();
  const top = here[0].getBoundingClientRect().top;
  const bottom = here[here.length - 1].getBoundingClientRect().bottom;
  if (top < frame.top + 8 || bottom > frame.bottom - 8) {
    panel.scrollTop += top - frame.top - frame.height / 3;
  }
}
