/** The nonce of this page, which style sheets need that libraries add at run time. */

export const nonce = document.querySelector<HTMLScriptElement>('script[nonce]')?.nonce ?? ''

// The library that stops the page behind a dialog from scrolling reads it there.
Object.assign(globalThis, { __webpack_nonce__: nonce })
