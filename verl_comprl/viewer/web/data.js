// Blocks of the page (blocks.py): found by name, decompressed when needed. Tables of a run and search in them.

const KEPT = 32; // decompressed blocks of a table

async function element(name) {
  if (!document.getElementById(name) && document.readyState === "loading") {
    await new Promise((done) => document.addEventListener("DOMContentLoaded", done, { once: true }));
  }
  return document.getElementById(name);
}

function bytes(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const array = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) array[i] = text.charCodeAt(i);
  return array;
}

async function text(name) {
  const found = await element(name);
  if (!found) throw new Error(`this page has no block ${name}`);
  const stream = new Blob([bytes(found.textContent)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

export async function block(name) {
  return JSON.parse(await text(name));
}

class Table {
  constructor(name, { columns, starts }) {
    Object.assign(this, { name, columns, starts, length: columns.id?.length ?? 0, rowOf: new Map() });
    columns.id?.forEach((id, row) => this.rowOf.set(id, row));
    this.blocks = new Map();
  }

  // Details of a row; null if the page was written without them.
  async detail(row) {
    let low = 0;
    for (let high = this.starts.length; high - low > 1; ) {
      const middle = (low + high) >> 1;
      if (this.starts[middle] <= row) low = middle;
      else high = middle;
    }
    let rows = this.blocks.get(low);
    this.blocks.delete(low);
    rows ??= block(`${this.name}/${low}`);
    this.blocks.set(low, rows); // the newest is last
    if (this.blocks.size > KEPT) this.blocks.delete(this.blocks.keys().next().value);
    return (await rows)[row - this.starts[low]];
  }

  // Calls `found` with the rows of each block whose details contain all words, and the share that has been searched.
  async search(words, found, stopped) {
    const escaped = words.map((word) => JSON.stringify(word).slice(1, -1));
    for (let number = 0; number < this.starts.length; number++) {
      const json = await text(`${this.name}/${number}`);
      if (stopped()) return;
      const rows = [];
      const lower = json.toLowerCase();
      if (escaped.every((word) => lower.includes(word))) {
        JSON.parse(json).forEach((detail, row) => {
          const parts = [];
          collect(detail, parts);
          const whole = parts.join("\n").toLowerCase();
          if (words.every((word) => whole.includes(word))) rows.push(this.starts[number] + row);
        });
      }
      found(rows, (number + 1) / this.starts.length);
    }
  }
}

// Texts of a JSON value, without its keys.
function collect(value, parts) {
  if (typeof value === "string") parts.push(value);
  else if (value && typeof value === "object") for (const item of Object.values(value)) collect(item, parts);
}

// The entries, of which copies of a text have in their rows what all of them were worth together. `copies` are the rows of
// all, null if there is one only; `text` is the first of them, which stands for all.
function pooled(entries, copies) {
  const { length } = entries;
  const columns = { ...entries.columns, copies: new Array(length).fill(null), text: Array.from({ length }, (_, row) => row) };
  const details = new Map();
  for (const name of Object.keys(copies[0]?.columns ?? {})) columns[name] = [...columns[name]];
  for (const { rows, columns: shared, details: more } of copies) {
    for (const row of rows) {
      columns.copies[row] = rows;
      columns.text[row] = rows[0];
      details.set(row, more);
      for (const [name, value] of Object.entries(shared)) columns[name][row] = value;
    }
  }
  const detail = async (row) => ({ ...await entries.detail(row), ...details.get(row) });
  return Object.assign(Object.create(entries), { columns, detail });
}

export class Run {
  constructor(number, summary, entries, episodes, calls) {
    Object.assign(this, { number, summary, entries, episodes, calls, texts: pooled(entries, summary.copies) });
    this.children = lists(entries.length, (add) =>
      entries.columns.parents?.forEach((parents, row) => parents.forEach((parent) => add(parent, row))));
    const { entry = [], asked = [], prompt = [] } = episodes.columns;
    const row = (id) => entries.rowOf.get(id);
    this.guidedBy = lists(entries.length, (add) => entry.forEach((id, episode) => id && add(row(id), episode)));
    this.askedBy = lists(entries.length, (add) =>
      asked.forEach((ids, episode) => ids.forEach((id) => add(row(id), episode))));
    this.group = new Map();
    prompt.forEach((id, episode) => this.group.set(id, [...(this.group.get(id) ?? []), episode]));
    this.callsOf = new Map();
    calls.columns.episode?.forEach((id, call) => id && this.callsOf.set(id, [...(this.callsOf.get(id) ?? []), call]));
  }

  static async read(number) {
    const name = `run${number}`;
    const table = async (part) => new Table(`${name}/${part}`, await block(`${name}/${part}`));
    const summary = await block(name);
    return new Run(number, summary, ...(await Promise.all([table("entries"), table("episodes"), table("calls")])));
  }
}

function lists(length, fill) {
  const found = Array.from({ length }, () => null);
  fill((row, value) => row !== undefined && (found[row] ??= []).push(value));
  return found;
}
