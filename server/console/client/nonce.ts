/** The page's nonce, required by style sheets that libraries add at run time. */

export const nonce = document.querySelector<HTMLScriptElement>('script[nonce]')?.nonce ?? ''

// Read by the library that locks scrolling behind a dialog.
Object.assign(globalThis, { __webpack_nonce__: nonce })
