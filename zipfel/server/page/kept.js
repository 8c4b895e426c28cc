// Sends decisions to the service, if it keeps them. What could not be sent goes with the next decision.

import { ask } from "./api.js";

const FINAL = (status) => status >= 400 && status < 500 && ![401, 408, 429].includes(status); // sending again is no use

const waiting = []; // requests, oldest first
let offered = false;
let sending = null;

/** Whether the service keeps decisions. */
export function offer(isKept) {
  offered = isKept;
}

/**
 * Sends decisions on labels of a subject, {document, model, version}: {label, decision, rank, score}, where rank is null
 * for a label that was not shown. Throws a Problem if they are not kept yet.
 */
export async function keep({ document, model, version }, decisions) {
  if (!offered || !decisions.length) return;
  waiting.push({ text: document, decisions, ...(model && { model }), ...(version && { version }) });
  await sendWaiting();
}

/** Sends what waits to be sent. */
export async function sendWaiting() {
  sending ??= sendAll().finally(() => (sending = null));
  await sending;
}

async function sendAll() {
  while (waiting.length) {
    try {
      await ask("corrections", { body: waiting[0] });
    } catch (problem) {
      if (FINAL(problem.status)) waiting.shift();
      throw problem;
    }
    waiting.shift();
  }
}
