/** The HTML that all pages share; what happens on them is in script.js. */
import type { Context } from '../context.ts'

/** Which page it is: script.js knows the same names. */
export type PageName =
  | 'oauth'
  | 'signin'
  | 'graphiql'
  | 'resetpassword'
  | 'setpassword'
  | 'verifyemail'

const STYLE = `
:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif }
body { margin: 0; display: grid; place-items: center; min-height: 100vh; background: Canvas; color: CanvasText }
main { width: min(24rem, 100vw - 2rem); padding: 1rem 0 }
h1 { font-size: 1.5rem; margin: 0 0 1rem }
h1:focus { outline: none }
label { display: block; margin: 1rem 0 .25rem; font-weight: 600 }
input:not([type=radio], [type=checkbox]) { box-sizing: border-box; width: 100%; min-height: 2.75rem; padding: .25rem .5rem; font: inherit }
fieldset { border: 1px solid GrayText; border-radius: 6px; padding: .5rem 1rem; margin: 1rem 0 0 }
fieldset label { font-weight: 400; margin: .5rem 0 }
button { margin-top: 1.25rem; width: 100%; min-height: 2.75rem; border: 0; border-radius: 6px; font: inherit; font-weight: 600; background: #0b57d0; color: #fff; cursor: pointer }
button.no { margin-top: .75rem; background: none; color: inherit; border: 1px solid GrayText }
dl { margin: 0; display: grid; grid-template-columns: auto 1fr; gap: .25rem 1rem }
dt { font-weight: 600 }
dd { margin: 0; overflow-wrap: anywhere }
ul { margin: 0; padding-left: 1.25rem }
button:disabled { opacity: .6 }
:focus-visible { outline: 3px solid light-dark(#0b57d0, #a8c7fa); outline-offset: 2px }
[role=alert]:not(:empty) { padding: .5rem 1rem; border-left: 4px solid light-dark(#b3261e, #f2b8b5); border-radius: 2px }
a { display: inline-block; padding: .5rem 0; color: light-dark(#0b57d0, #a8c7fa) }
img { max-width: 100%; background: #fff }
`

/** Loosens the policy of all other answers just enough: our script and style, pictures of codes and logos. */
export function sendPage(
  ctx: Context,
  name: PageName,
  title: string,
  productName: string,
  data: Readonly<Record<string, string>> = {},
): void {
  const attributes = Object.entries(data).map(([key, value]) => ` data-${key}="${escaped(value)}"`)
  ctx.set(
    'Content-Security-Policy',
    [
      "default-src 'none'",
      "script-src 'self'",
      "style-src 'self'",
      "connect-src 'self'",
      'img-src data: https:',
      "base-uri 'none'",
      "form-action 'none'",
      "frame-ancestors 'none'",
    ].join('; '),
  )
  ctx.type = 'text/html; charset=utf-8'
  ctx.body = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(`${title} – ${productName}`)}</title>
<link rel="stylesheet" href="/pages/style.css">
<script type="module" src="/pages/script.js"></script>
</head>
<body data-page="${name}"${attributes.join('')}>
<main>
<h1 tabindex="-1">${escaped(title)}</h1>
<div role="alert" id="problem"></div>
<div id="content"><noscript>Please switch JavaScript on to sign in.</noscript></div>
</main>
</body>
</html>
`
}

export function sendStyle(ctx: Context): void {
  ctx.type = 'text/css'
  ctx.body = STYLE
}

function escaped(text: string): string {
  const entities: Readonly<Record<string, string>> = {
    '&': '&amp;',
    '<': '&lt;',
    '>': '&gt;',
    '"': '&quot;',
    "'": '&#39;',
  }
  return text.replace(/[&<>"']/g, (character) => entities[character] ?? '')
}
