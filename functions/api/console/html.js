// The library that draws: Preact, with templates that need no build step (vendor/README.md).
import { h, render, createContext, Fragment } from "./vendor/preact.mjs";
import htm from "./vendor/htm.mjs";

export * from "./vendor/hooks.mjs";
export { render, createContext, Fragment };
export const html = htm.bind(h);
