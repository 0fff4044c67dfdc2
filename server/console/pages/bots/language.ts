/** Suggestions, descriptions and errors in the code of a bot, by TypeScript's language service in a web worker. */

import { languageWorker } from 'console:language-worker'
import {
  autocompletion,
  type CompletionContext,
  type CompletionResult,
} from '@codemirror/autocomplete'
import { type Diagnostic, linter } from '@codemirror/lint'
import type { EditorState, Extension } from '@codemirror/state'
import { hoverTooltip } from '@codemirror/view'
import type { Answer, Description, Question, questions } from './language-worker.ts'

type Questions = typeof questions
type Ask = <Name extends keyof Questions>(
  state: EditorState,
  name: Name,
  ...values: Parameters<Questions[Name]>
) => Promise<ReturnType<Questions[Name]>>

/** Starts the worker at the first question; it ends with the page. */
function createAsk(): Ask {
  const waiting = new Map<number, (value: unknown) => void>()
  let worker: Worker | undefined
  let last = 0
  const start = () => {
    const started = new Worker(`/console/assets/${languageWorker}`)
    started.addEventListener('message', ({ data: { id, value } }: MessageEvent<Answer>) => {
      waiting.get(id)?.(value)
      waiting.delete(id)
    })
    return started
  }
  return (state, name, ...values) => {
    worker ??= start()
    last += 1
    const question: Question = { id: last, text: state.doc.toString(), name, values }
    worker.postMessage(question)
    const { promise, resolve } = Promise.withResolvers<unknown>()
    waiting.set(last, resolve)
    // An answer has the type of its question.
    return promise as Promise<never>
  }
}

const ask = createAsk()
/** A word, or the character that begins one. */
const BEGINNING = /[\w$]+$|[.'"@/]$/
const CHECK_DELAY_MS = 400

async function complete(context: CompletionContext): Promise<CompletionResult | null> {
  const { state, pos, explicit } = context
  if (!explicit && context.matchBefore(BEGINNING) === null) return null
  const found = await ask(state, 'suggest', pos)
  if (found === undefined) return null
  const options = found.items.map(({ label, kind, sort }) => ({
    label,
    type: COMPLETION_TYPES[kind] ?? 'variable',
    sortText: sort,
    info: async () => {
      const description = await ask(state, 'describeSuggestion', pos, label)
      return description ? describe(description) : null
    },
  }))
  return { from: found.from, options, validFor: /^[\w$]*$/ }
}

/** CodeMirror's types by TypeScript's kinds. */
const COMPLETION_TYPES: Readonly<Record<string, string>> = {
  method: 'method',
  function: 'function',
  property: 'property',
  getter: 'property',
  interface: 'interface',
  type: 'type',
  class: 'class',
  enum: 'enum',
  const: 'constant',
  keyword: 'keyword',
  string: 'text',
}

function describe([declaration, text]: Description): HTMLElement {
  const place = document.createElement('div')
  place.className = 'described'
  place.append(Object.assign(document.createElement('code'), { textContent: declaration }))
  if (text !== '') place.append(Object.assign(document.createElement('p'), { textContent: text }))
  return place
}

/** Errors of types are warnings: a bot that has some can be deployed. */
async function check({ state }: { readonly state: EditorState }): Promise<readonly Diagnostic[]> {
  const findings = await ask(state, 'check')
  return findings
    .filter(({ to }) => to <= state.doc.length)
    .map(({ from, to, message, isSyntax }) => ({
      from,
      to,
      message,
      severity: isSyntax ? 'error' : 'warning',
    }))
}

export const botLanguage: Extension = [
  autocompletion({ override: [complete] }),
  linter(check, { delay: CHECK_DELAY_MS }),
  hoverTooltip(async ({ state }, pos) => {
    const found = await ask(state, 'describe', pos)
    return found === undefined ? null : { pos, create: () => ({ dom: describe(found) }) }
  }),
]
