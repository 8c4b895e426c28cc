// Requests to the service: JSON both ways, a token if the server requires one, errors in plain words.

const TOKEN = "zipfel.token";

/** An error with a message for the user; `refused` if the server rejected the request itself (status 400). */
export class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.refused = status === 400;
    this.status = status;
  }
}

let askForToken = async () => "";
let asking = null; // several responses with 401 at once open one dialog

/** Sets the handler that asks the user for a token; it gets the reason, and returns the token or nothing. */
export function onTokenNeeded(handler) {
  askForToken = handler;
}

/** Sends a request; with `body` it is a POST. Throws a Problem, or an AbortError if `signal` was aborted. */
export async function ask(path, { body, signal } = {}) {
  const sent = sessionStorage.getItem(TOKEN);
  const response = await responseTo(path, body, signal, sent);
  if (response.status === 401 && (await newToken(sent))) return ask(path, { body, signal });
  const content = await response.json().catch(() => null);
  if (!response.ok) throw new Problem(content?.error ?? `The server responded with status ${response.status}.`, response.status);
  if (content === null) throw new Problem("The server's response is not JSON.");
  return content;
}

async function responseTo(path, body, signal, token) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const method = body === undefined ? "GET" : "POST";
  try {
    return await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not respond. Is it still running?");
  }
}

async function newToken(sent) {
  if (sessionStorage.getItem(TOKEN) !== sent) return true; // another request has got a token meanwhile
  asking ??= askForToken(sent ? "Wrong token." : "").finally(() => (asking = null));
  const token = await asking;
  if (token) sessionStorage.setItem(TOKEN, token);
  return Boolean(token);
}
