// Connects the parts of the page: tags the text as the user types.

import { Answer } from "./answer.js";
import { ask, onTokenNeeded, Problem } from "./api.js";
import { download, showCorrections } from "./corrections.js";
import { Detail } from "./detail.js";
import { about, chosenModel, exampleText, search, textOf, titleOf, useModel } from "./labels.js";
import { Inputs } from "./inputs.js";
import { button, element } from "./made.js";
import { keep, offer, sendWaiting } from "./kept.js";
import { searchable } from "./search.js";
import * as session from "./session.js";
import { TagList } from "./tags.js";
import { setUpTheme } from "./theme.js";
import { tokenFromUser } from "./token.js";
import { described, legend } from "./words.js";

const WAIT = 150; // ms after the last key

const byId = (id) => document.getElementById(id);
const inputs = new Inputs(byId("inputs"), { typed, key: arrowed });
const slider = byId("threshold");

let timer = null; // runs from a key press to the request, which also saves the text; else null
let saying = null; // runs from a response to its announcement
let control = new AbortController(); // of the newest request: responses to older ones are dropped
let answer = null; // what the list shows
let models = new Map(); // by the value of its option
let failing = null; // what the shown problem is about: "tag", "search", "keep" or "start"
let looked = null; // the label that the user points at

const detail = new Detail({ about, words: (label) => answer?.why(label)?.reasons ?? [], accept });
const list = new TagList(byId("tags"), {
  open: (label) => detail.toggle(list.row(label)),
  choose: decide,
  look: (label) => ((looked = label), mark()),
  leave: () => inputs.focus(),
});

// --- tagging

function typed() {
  clearTimeout(timer);
  timer = setTimeout(tag, WAIT);
}

/** Saves the text for a reload; not at each key, because a long text takes too long. */
function saveText() {
  session.text.set(inputs.document);
}

/** Tags the text in the field; returns the error if there was one, else null. */
async function tag() {
  clearTimeout(timer);
  timer = null;
  saveText();
  control.abort();
  control = new AbortController();
  const { signal } = control;
  if (inputs.isBlank) return showNothing();
  const started = performance.now();
  byId("answer").ariaBusy = "true";
  try {
    const newest = await Answer.of(inputs.document, signal);
    if (signal.aborted) return null;
    answer = newest;
    byId("timing").textContent = `${Math.round(performance.now() - started)} ms`;
    solved("tag", "start");
    show();
    say();
    explainShown();
    return null;
  } catch (error) {
    if (!signal.aborted) {
      withdraw(); // else a choice would belong to the previous text
      failed(error);
    }
    return error;
  } finally {
    if (!signal.aborted) byId("answer").ariaBusy = "false";
  }
}

/** Requests details of the shown tags one after the other, best first, so as not to flood the service. */
async function explainShown() {
  const { signal } = control;
  try {
    for (const { label } of answer.shown(threshold())) {
      await Promise.all([about(label), answer.explain(label, signal)]);
      if (signal.aborted) return;
      show();
    }
  } catch (error) {
    if (!signal.aborted) failed(error);
  }
}

function failed(error, about = "tag") {
  failing = about;
  byId("problem").hidden = false;
  byId("problem").firstElementChild.textContent = error instanceof Problem ? error.message : `Error in the page: ${error}`;
  if (!(error instanceof Problem)) console.error(error);
}

/** Hides the problem if it is about one of these. */
function solved(...causes) {
  if (causes.includes(failing)) byId("problem").hidden = true;
}

// --- showing

function threshold() {
  return Number(slider.value);
}

function show() {
  const rows = answer.shown(threshold());
  byId("empty").hidden = true;
  byId("answer").hidden = byId("missing").hidden = false;
  list.show(rows.map(item), threshold());
  detail.refresh();
  byId("more").textContent = answer.rest(threshold());
  byId("unknown").hidden = answer.known;
  byId("accept-rest").disabled = rows.every(({ label }) => answer.choice(label));
  byId("invented").replaceChildren(...[...session.invented.keys()].map(inventedItem));
  mark();
}

function item({ label, score }) {
  const invented = session.invented.has(label);
  return { label, title: titleOf(label), score, about: textOf(label), words: answer.strongestWords(label), choice: answer.choice(label), invented };
}

function inventedItem(name) {
  const remove = button("×", () => (session.forget(name), tag()), "remove");
  remove.setAttribute("aria-label", `Remove ${name}`);
  return element("li", [element("span", name, "name"), element("span", answer.rankOf(name), "note"), remove]);
}

/** Shows no tags. */
function withdraw() {
  answer = null;
  looked = null;
  detail.close();
  byId("answer").hidden = byId("missing").hidden = true;
  byId("legend").textContent = byId("timing").textContent = "";
}

function showNothing() {
  withdraw();
  solved("tag", "search");
  byId("empty").hidden = false;
  return null;
}

/** Whether the tags on the screen are those of the text and the model on the screen. */
function isCurrent() {
  const { model } = chosenModel();
  return answer !== null && inputs.shows(answer.document) && (model === undefined || model === answer.model);
}

/** Marks the words of the tag the user points at, else of the open one, else of the first. */
function mark() {
  if (!answer || !inputs.shows(answer.document)) return; // while typing, existing marks are moved along
  const label = looked ?? detail.label ?? answer.shown(threshold())[0]?.label;
  const why = answer.why(label);
  for (const row of byId("tags").children) row.classList.toggle("looked", row.dataset.label === label);
  if (!why && label && answer.score(label) !== null) return; // its words have not arrived yet
  inputs.mark((field) => answer.rangesIn(field, label));
  byId("legend").replaceChildren(...legend(label, why));
}

/** Announces the result to screen readers, once the user stops typing. */
function say() {
  clearTimeout(saying);
  saying = setTimeout(() => {
    const rows = answer?.shown(threshold()) ?? [];
    const unknown = answer && !answer.known ? `${byId("unknown").textContent} ` : "";
    byId("said").textContent = unknown + (rows.length ? `${rows.length} tags. First: ${titleOf(rows[0].label)}.` : byId("more").textContent);
  }, 700);
}

// --- deciding

function decide(label, choice) {
  if (!isCurrent()) return; // the tags of the new text are on their way
  session.choose(answer, label, choice);
  keepDecisions([label]);
  decided();
}

/** Sends decisions on labels of the shown text to the service, if it keeps them. */
function keepDecisions(labels) {
  keptOrFailed(keep(answer, labels.map((label) => answer.decision(label, threshold()))));
}

function keptOrFailed(kept) {
  kept.then(() => solved("keep"), (error) => failed(error, "keep"));
}

/** Takes back all decisions on a text, also at the service. */
function removed({ document, model, labels, rejected }) {
  keptOrFailed(keep({ document, model }, [...labels, ...rejected].map((label) => ({ label, decision: "undo" }))));
  decided();
}

function decided() {
  if (answer) show();
  showCorrections(open, removed);
}

function accept(label) {
  if (!isCurrent()) return;
  if (answer.choice(label) !== "accept") decide(label, "accept");
  about(label).then(() => answer && show());
}

function acceptRest() {
  if (!isCurrent()) return;
  const open = answer.shown(threshold()).map(({ label }) => label).filter((label) => !answer.choice(label));
  for (const label of open) session.choose(answer, label, "accept");
  keepDecisions(open);
  decided();
}

async function invent(event) {
  event.preventDefault();
  const [name, text] = [byId("new-name"), byId("new-text")].map((input) => input.value.trim());
  if (!name || !text) return;
  session.invent(name, text);
  const problem = await tag();
  if (problem?.refused) {
    session.forget(name); // or it would break every further request
    await tag();
    return failed(problem);
  }
  byId("invent").reset();
  byId("new-name").focus();
}

// --- starting

/** Puts a document into the inputs, and chooses the model, if it is still there. */
function open(document, model) {
  if (model !== undefined && model !== byId("models").value && models.has(model)) {
    byId("models").value = model;
    useChosen();
  }
  inputs.document = document;
  typed();
  tag();
  inputs.focus();
}

async function showModels() {
  const { models: served, corrections } = await ask("models");
  offer(corrections);
  byId("server-keeps").hidden = !corrections;
  models = new Map();
  for (const one of served) {
    const isOther = models.has(one.id); // another version of the same model
    models.set(isOther ? `${one.id}@${one.version}` : one.id, { ...one, chosen: { model: one.id, ...(isOther && { version: one.version }) } });
  }
  byId("model-name").textContent = served.length === 1 ? described(served[0]) : "";
  byId("models").hidden = served.length < 2;
  byId("models").replaceChildren(...[...models].map(([value, one]) => new Option(described(one), value)));
  const kept = session.model.get();
  byId("models").value = models.has(kept) ? kept : [...models.keys()][0];
  useChosen();
}

/** Uses the chosen model, and keeps it for a reload. */
function useChosen() {
  const { value } = byId("models");
  session.model.set(value);
  useModel(models.get(value).chosen);
  showInputs();
}

/** Shows an input for each text field of the chosen model. */
function showInputs() {
  if (timer !== null) saveText(); // typed just now: the new inputs take it over
  if (inputs.use(models.get(byId("models").value).fields)) inputs.document = session.text.get();
}

function chooseModel() {
  useChosen();
  withdraw(); // the tags of another model
  tag();
}

function start() {
  showModels().then(
    () => (keptOrFailed(sendWaiting()), tag()),
    (error) => failed(error, "start"),
  );
}

function slid() {
  session.threshold.set(threshold());
  byId("threshold-value").textContent = threshold().toFixed(2);
  if (answer) show();
}

function pressed(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) tag();
  if (event.key !== "Escape" || event.defaultPrevented || byId("token-dialog").open) return;
  if (detail.label !== null) detail.close();
  else if (list.focused !== null) inputs.focus();
  mark();
}

/** Moves the focus from the end of the text to the tags. */
function arrowed(event, isLast) {
  const atEnd = isLast && event.target.selectionStart === event.target.value.length;
  if (event.key !== "ArrowDown" || !atEnd || !answer || !list.current) return;
  event.preventDefault();
  list.focus(list.current);
}

setUpTheme(byId("theme"));
onTokenNeeded(tokenFromUser);
searchable(byId("search"), byId("found"), {
  search,
  pick: accept,
  fail: (error) => failed(error, "search"),
  done: () => solved("search"),
});
document.addEventListener("keydown", pressed);
window.addEventListener("pagehide", saveText);
slider.addEventListener("input", slid);
slider.addEventListener("change", () => answer && explainShown());
byId("problem").querySelector("button").addEventListener("click", start);
byId("example").addEventListener("click", () => exampleText().then((text) => open(text), (error) => failed(error)));
byId("accept-rest").addEventListener("click", acceptRest);
byId("invent").addEventListener("submit", invent);
byId("models").addEventListener("change", chooseModel);
byId("download").addEventListener("click", download);

slider.value = session.threshold.get() ?? 0.2;
inputs.document = session.text.get();
slid();
showCorrections(open, removed);
inputs.focus();
start();
