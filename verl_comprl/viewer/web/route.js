// What is shown, in the address: #run/page/id?filters for one pane, with a second one after "|".
// A program that passes an address on may write "%7C" for "|". In a filter or an id "%7C" never stands before "number/",
// since a "/" of theirs is escaped.

import { createContext } from "preact";
import { useContext, useEffect, useState } from "preact/hooks";

export const PAGES = ["overview", "bank", "episodes", "extractor"];

const SIDES = /\||%7C(?=\d+\/)/i;

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch { // a broken escape
    return text;
  }
}

function parse(hash) {
  return hash.replace(/^#/, "").split(SIDES).slice(0, 2).map((text) => {
    const [path, query = ""] = text.split("?");
    const [run, page, id] = path.split("/").map(decoded);
    return {
      run: Number(run) || 0,
      page: PAGES.includes(page) ? page : "overview",
      id: id || "",
      query: Object.fromEntries(new URLSearchParams(query)),
    };
  });
}

export function format(panes) {
  return "#" + panes.map(({ run, page, id, query }) => {
    const given = new URLSearchParams(Object.entries(query ?? {}).filter(([, value]) => value !== "" && value != null));
    const path = [run, page, id].filter((part) => part !== "").map(encodeURIComponent).join("/");
    return path + (given.size ? `?${given}` : "");
  }).join("|");
}

export function useRoute() {
  const [panes, set] = useState(() => parse(location.hash));
  useEffect(() => {
    const changed = () => set(parse(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return panes;
}

// Of the pane around a component: its run, its route, whether what it has open is the last that is (`front`), and `link`
// and `go` to another route of the same pane.
export const Pane = createContext(null);
export const usePane = () => useContext(Pane);

export function paneOf(panes, number, run) {
  const route = panes[number];
  const link = (change) => format(panes.with(number, typeof change === "function" ? change(route) : {
    run: route.run, page: route.page, id: "", query: {}, ...change,
  }));
  return {
    run, route, link,
    front: panes.findLastIndex(({ id }) => id) === number,
    go: (change) => { location.hash = link(change); },
    replace: (change) => {
      history.replaceState(null, "", link(change));
      dispatchEvent(new HashChangeEvent("hashchange"));
    },
  };
}
