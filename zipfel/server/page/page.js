// Ties the page together: text in, tags out as one types.

import { ask, onTokenNeeded, Problem } from "./api.js";
import { download, showCorrections } from "./corrections.js";
import { Detail } from "./detail.js";
import { button, element } from "./made.js";
import { moved, paint, ranges } from "./marks.js";
import { searchable } from "./search.js";
import * as session from "./session.js";
import { TagList } from "./tags.js";
import { setUpTheme } from "./theme.js";

const WAIT = 150; // ms after the last key
const ASKED = 50; // tags asked for, so that the slider needs no server and a new label's place is known
const SHOWN = 10; // rows at most, besides those that were decided on
const PULLERS = 4; // words told in a row

const byId = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const field = byId("text");
const slider = byId("threshold");

let model = null; // the chosen one of GET /models; null is the server's first
let timer = null;
let control = new AbortController(); // of the newest question: what answers an older one is dropped
let answered = null; // {text, tags}: what the list shows
let reasons = new Map(); // label → what POST /explain says of the answered text
let painted = { text: "", found: [] }; // what the mirror shows
let looked = null; // the label that the user points at
const known = new Map(); // label → promise of what GET /labels/{name} says

const detail = new Detail({ about, words: (label) => reasons.get(label)?.reasons ?? [], accept });
const list = new TagList(byId("tags"), {
  open: (label) => detail.toggle(list.row(label)),
  choose: (label, choice) => decide(label, choice),
  look: (label) => ((looked = label), mark()),
  leave: () => field.focus(),
});

// --- asking

function typed() {
  session.text.set(field.value);
  const { text, found } = painted;
  repaint(field.value, moved(found, text, field.value));
  clearTimeout(timer);
  timer = setTimeout(tag, WAIT);
}

async function tag() {
  clearTimeout(timer);
  control.abort();
  control = new AbortController();
  const { signal } = control;
  const text = field.value;
  if (!text.trim()) return showNothing();
  const started = performance.now();
  byId("answer").ariaBusy = "true";
  try {
    const body = { texts: [text], k: ASKED, ...chosenModel(), ...inventedLabels() };
    const answer = await ask("tag", { body, signal });
    if (signal.aborted) return;
    answered = { text, tags: answer.tags[0] };
    reasons = new Map();
    byId("timing").textContent = `${Math.round(performance.now() - started)} ms`;
    fine();
    show();
    say();
    await explainShown(signal);
  } catch (error) {
    if (!signal.aborted) failed(error);
    return error;
  }
}

function chosenModel() {
  return model === null ? {} : { model };
}

function inventedLabels() {
  return session.invented.size ? { extra: Object.fromEntries(session.invented) } : {};
}

/** Asks for the words behind each shown tag, one after the other: the first ones are looked at first. */
async function explainShown(signal) {
  for (const { label, score } of shown()) {
    await Promise.all([about(label), score === null ? null : explain(label, signal)]);
    if (signal.aborted) return;
    show();
  }
}

async function explain(label, signal) {
  if (reasons.has(label)) return;
  const { text } = answered;
  const said = await askWhy(text, label, signal);
  if (signal.aborted) return;
  reasons.set(label, { ...said, found: ranges(text, said.reasons) });
}

async function askWhy(text, label, signal) {
  if (session.invented.has(label)) return { reasons: [], problem: "A new label is placed by its text as a whole." };
  try {
    return await ask("explain", { body: { text, label, ...chosenModel() }, signal });
  } catch (error) {
    if (error instanceof Problem) return { reasons: [], problem: error.message };
    throw error;
  }
}

/** Returns what is known of a label; asked once. */
function about(label) {
  if (session.invented.has(label)) {
    return Promise.resolve({ text: session.invented.get(label), near: [], why: "A label of this session." });
  }
  if (!known.has(label)) known.set(label, askAbout(label));
  return known.get(label);
}

async function askAbout(label) {
  try {
    const said = await ask(`labels/${encodeURIComponent(label)}?${new URLSearchParams(chosenModel())}`);
    texts.set(label, said.text ?? "");
    return { ...said, text: said.text ?? "" };
  } catch (error) {
    known.delete(label);
    return { text: "", near: [], why: error.message };
  }
}

const texts = new Map(); // label → its description, once it is known

// --- showing

/** Returns the rows to show: the best tags above the threshold, and those that were decided on. */
function shown() {
  const { text, tags } = answered;
  const floor = Number(slider.value);
  const first = tags.filter(({ score }) => score >= floor).slice(0, SHOWN);
  const there = new Set(first.map(({ label }) => label));
  const decided = ["accept", "reject"].flatMap((choice) => session.labelsOf(text, choice));
  const others = decided.filter((label) => !there.has(label)).map((label) => ({ label, score: scoreOf(label) }));
  return [...first, ...others.sort((one, other) => (other.score ?? -1) - (one.score ?? -1))];
}

function scoreOf(label) {
  return answered.tags.find((tag) => tag.label === label)?.score ?? null;
}

function show() {
  const rows = shown();
  const floor = Number(slider.value);
  byId("empty").hidden = true;
  byId("answer").hidden = byId("missing").hidden = false;
  byId("answer").ariaBusy = "false";
  list.show(rows.map(item), floor);
  detail.refresh();
  byId("more").textContent = more(rows.length, floor);
  byId("accept-rest").disabled = rows.every(({ label }) => session.choiceOf(answered.text, label));
  showInvented();
  mark();
}

function item({ label, score }) {
  const said = session.invented.get(label) ?? texts.get(label) ?? "";
  return {
    label,
    score,
    about: said.toLowerCase() === label.toLowerCase() ? "" : said,
    words: pullers(label),
    choice: session.choiceOf(answered.text, label),
    invented: session.invented.has(label),
  };
}

function pullers(label) {
  const found = reasons.get(label)?.reasons ?? [];
  return found.filter(({ weight }) => weight > 0).slice(0, PULLERS).map(({ term }) => term);
}

function more(rows, floor) {
  const { tags } = answered;
  const above = tags.filter(({ score }) => score >= floor).length;
  if (!tags.length) return "The model knows no word of this text.";
  if (!above) return `No tag reaches ${floor.toFixed(2)}; the best, ${tags[0].label}, has ${tags[0].score.toFixed(2)}.`;
  return above > rows ? `and ${above - rows}${tags.length === above ? " or more" : ""} below these` : "";
}

function showInvented() {
  const items = [...session.invented.keys()].map((name) => {
    const remove = button("×", () => (session.forget(name), tag()), "remove");
    remove.setAttribute("aria-label", `Remove ${name}`);
    return element("li", [element("span", name, "name"), element("span", placeOf(name), "note"), remove]);
  });
  byId("invented").replaceChildren(...items);
}

function placeOf(name) {
  const place = answered.tags.findIndex(({ label }) => label === name);
  return place < 0 ? `not among the first ${ASKED}` : `place ${place + 1}, ${answered.tags[place].score.toFixed(2)}`;
}

/** Marks the words of the tag that is looked at, else of the one that is open, else of the first. */
function mark() {
  if (answered === null || answered.text !== field.value) return; // what is marked is moved along by typing
  const label = looked ?? detail.label ?? shown()[0]?.label;
  const said = reasons.get(label);
  for (const row of byId("tags").children) row.classList.toggle("looked", row.dataset.label === label);
  if (!said && label && scoreOf(label) !== null) return; // its words are on their way
  repaint(answered.text, said?.found ?? []);
  byId("legend").replaceChildren(...legend(label, said));
}

function legend(label, said) {
  if (!label || !said) return [];
  if (said.problem) return [said.problem];
  if (!said.reasons.length) return ["No single word pulled ", element("b", label)];
  return [element("mark", "Marked"), " words pulled ", element("b", label)];
}

function repaint(text, found) {
  painted = { text, found };
  paint(byId("mirror"), text, found);
}

function showNothing() {
  answered = null;
  reasons = new Map();
  detail.close();
  byId("answer").hidden = byId("missing").hidden = true;
  byId("empty").hidden = false;
  byId("legend").textContent = byId("timing").textContent = "";
  fine();
}

let saying = null;

/** Tells the outcome to those who listen instead of look, once the typing rests. */
function say() {
  clearTimeout(saying);
  saying = setTimeout(() => {
    if (answered === null) return;
    const [first, ...others] = shown();
    byId("said").textContent = first ? `${1 + others.length} tags. First: ${first.label}.` : byId("more").textContent;
  }, 700);
}

function failed(error) {
  byId("problem").hidden = false;
  byId("problem").firstElementChild.textContent = error instanceof Problem ? error.message : `The page failed: ${error}`;
  byId("answer").ariaBusy = "false";
  if (!(error instanceof Problem)) throw error;
}

function fine() {
  byId("problem").hidden = true;
}

// --- deciding

function decide(label, choice) {
  session.choose(answered.text, label, choice);
  decided();
}

function accept(label) {
  if (session.choiceOf(answered.text, label) !== "accept") decide(label, "accept");
  about(label).then(show);
}

function acceptRest() {
  for (const { label } of shown())
    if (!session.choiceOf(answered.text, label)) session.choose(answered.text, label, "accept");
  decided();
}

function decided() {
  if (answered) show();
  showCorrections(open, decided);
}

function open(text) {
  field.value = text;
  typed();
  tag();
  field.focus();
}

async function invent(event) {
  event.preventDefault();
  const [name, said] = [byId("new-name"), byId("new-text")].map((input) => input.value.trim());
  if (!name || !said) return;
  session.invent(name, said);
  const problem = await tag();
  if (problem?.refused) return session.forget(name); // or it would spoil every further question
  byId("invent").reset();
  byId("new-name").focus();
}

// --- starting

function search(q, signal, limit = 20) {
  return ask(`labels?${new URLSearchParams({ q, limit, ...chosenModel() })}`, { signal });
}

/** Takes descriptions of a few frequent labels as a text: the model's own field, whatever it is. */
async function example() {
  try {
    const { labels } = await search("", undefined, 100);
    const frequent = labels.sort((one, other) => other.count - one.count).slice(0, 3);
    open(frequent.map(({ name, text }) => text || name).join(". "));
  } catch (error) {
    failed(error);
  }
}

async function showModels() {
  const { models } = await ask("models");
  byId("model-name").textContent = models.length === 1 ? described(models[0]) : "";
  byId("models").hidden = models.length < 2;
  byId("models").replaceChildren(...models.map((one) => new Option(described(one), one.id)));
}

function described({ id, labels }) {
  return labels ? `${id} · ${number.format(labels)} labels` : id;
}

function chooseModel() {
  model = byId("models").value;
  known.clear();
  texts.clear();
  tag();
}

function tokenFromUser(why) {
  const dialog = byId("token-dialog");
  byId("token-problem").textContent = why;
  byId("token").value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(byId("token").value || null), { once: true });
  });
}

function slid() {
  session.threshold.set(Number(slider.value));
  byId("threshold-value").textContent = Number(slider.value).toFixed(2);
  if (answered) show();
}

function pressed(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) return tag();
  if (event.key !== "Escape" || event.defaultPrevented || byId("token-dialog").open) return;
  if (detail.label !== null) detail.close();
  else if (list.focused !== null) field.focus();
  mark();
}

function arrowed(event) {
  const end = field.selectionStart === field.value.length && field.selectionStart === field.selectionEnd;
  if (event.key !== "ArrowDown" || !end || !list.current) return;
  event.preventDefault();
  list.focus(list.current);
}

setUpTheme(byId("theme"));
onTokenNeeded(tokenFromUser);
searchable(byId("search"), byId("found"), { search, pick: accept, fail: failed });
field.addEventListener("input", typed);
field.addEventListener("keydown", arrowed);
document.addEventListener("keydown", pressed);
slider.addEventListener("input", slid);
slider.addEventListener("change", () => answered && explainShown(control.signal).catch(() => {}));
byId("problem").querySelector("button").addEventListener("click", tag);
byId("example").addEventListener("click", example);
byId("accept-rest").addEventListener("click", acceptRest);
byId("invent").addEventListener("submit", invent);
byId("models").addEventListener("change", chooseModel);
byId("download").addEventListener("click", download);

slider.value = session.threshold.get() ?? 0.2;
slid();
showCorrections(open, decided);
field.value = session.text.get();
showModels().then(() => (field.value ? open(field.value) : field.focus()), failed);
