/** TypeScript's language service for the code of one bot. It runs in a web worker, since a check takes up to a second. */
import { botDeclarations } from 'console:bot-declarations'
import ts from 'typescript5'

const BOT = '/bot.ts'
const MODULES = '/node_modules'
const ROOTS = [BOT, `${MODULES}/event.d.ts`, `${MODULES}/@types/node/index.d.ts`]
const PACKAGES: Readonly<Record<string, string>> = {
  '@medplum/core': '@medplum/core/dist/esm/index.d.ts',
  '@medplum/fhirtypes': '@medplum/fhirtypes/dist/index.d.ts',
  'undici-types': 'undici-types/index.d.ts',
}
const OPTIONS: ts.CompilerOptions = {
  target: ts.ScriptTarget.ESNext,
  module: ts.ModuleKind.ESNext,
  lib: ['lib.esnext.d.ts'],
  types: [],
  allowImportingTsExtensions: true,
  noEmit: true,
  skipLibCheck: true,
}
/** A module without declarations; the deployment rejects modules that do not exist. */
const UNKNOWN_MODULE = new Set([2307, 7016])
const MOST_SUGGESTIONS = 2000

interface Suggestion {
  readonly label: string
  readonly kind: string
  readonly sort: string
}

interface Suggestions {
  /** Where the word begins that a suggestion replaces. */
  readonly from: number
  readonly items: readonly Suggestion[]
}

interface Finding {
  readonly from: number
  readonly to: number
  readonly message: string
  readonly isSyntax: boolean
}

/** A declaration and its documentation. */
export type Description = readonly [declaration: string, text: string]

let text = ''
let version = 0

const files = new Map(
  Object.entries(botDeclarations).map(([path, declaration]) => [
    `${MODULES}/${path}`,
    ts.ScriptSnapshot.fromString(declaration),
  ]),
)

const service = ts.createLanguageService({
  getCompilationSettings: () => OPTIONS,
  getScriptFileNames: () => ROOTS,
  getScriptVersion: (path) => (path === BOT ? String(version) : '1'),
  getScriptSnapshot: (path) =>
    path === BOT ? ts.ScriptSnapshot.fromString(text) : files.get(path),
  getCurrentDirectory: () => '/',
  getDefaultLibFileName: () => `${MODULES}/typescript5/lib/lib.esnext.d.ts`,
  fileExists: (path) => path === BOT || files.has(path),
  readFile: (path) => files.get(path)?.getText(0, files.get(path)?.getLength() ?? 0),
  resolveModuleNameLiterals: (names, from) =>
    names.map(({ text: name }) => ({ resolvedModule: resolveModule(name, from) })),
})

function resolveModule(name: string, from: string): ts.ResolvedModuleFull | undefined {
  const relative = name.startsWith('.') ? new URL(name, `file://${from}`).pathname : undefined
  const path = relative ?? `${MODULES}/${PACKAGES[name] ?? ''}`
  const found = [path, `${path}.d.ts`, path.replace(/\.[jt]s$/, '.d.ts'), `${path}/index.d.ts`]
  const resolvedFileName = found.find((candidate) => files.has(candidate))
  return resolvedFileName === undefined
    ? undefined
    : { resolvedFileName, extension: ts.Extension.Dts }
}

export const questions = {
  suggest(position: number): Suggestions | undefined {
    const found = service.getCompletionsAtPosition(BOT, position, {
      includeCompletionsForModuleExports: false,
      includeCompletionsWithInsertText: false,
    })
    const word = /[\w$]*$/.exec(text.slice(0, position))?.[0] ?? ''
    return (
      found && {
        from: found.optionalReplacementSpan?.start ?? position - word.length,
        items: found.entries.slice(0, MOST_SUGGESTIONS).map(({ name, kind, sortText }) => ({
          label: name,
          kind,
          sort: sortText,
        })),
      }
    )
  },

  describeSuggestion(position: number, name: string): Description | undefined {
    const options = [BOT, position, name, undefined, undefined, undefined, undefined] as const
    return describe(service.getCompletionEntryDetails(...options))
  },

  describe(position: number): Description | undefined {
    return describe(service.getQuickInfoAtPosition(BOT, position))
  },

  check(): readonly Finding[] {
    const syntax = service.getSyntacticDiagnostics(BOT).map((one) => toFinding(one, true))
    const types = service
      .getSemanticDiagnostics(BOT)
      .filter(({ code }) => !UNKNOWN_MODULE.has(code))
      .map((one) => toFinding(one, false))
    return [...syntax, ...types]
  },
}

function toFinding(diagnostic: ts.Diagnostic, isSyntax: boolean): Finding {
  const { start = 0, length = 0, messageText } = diagnostic
  const message = ts.flattenDiagnosticMessageText(messageText, '\n')
  return { from: start, to: start + length, message, isSyntax }
}

function describe(found: ts.QuickInfo | ts.CompletionEntryDetails | undefined) {
  if (found === undefined) return undefined
  const { displayParts, documentation } = found
  return [ts.displayPartsToString(displayParts), ts.displayPartsToString(documentation)] as const
}

export interface Question {
  readonly id: number
  readonly text: string
  readonly name: keyof typeof questions
  readonly values: readonly unknown[]
}

export interface Answer {
  readonly id: number
  readonly value: unknown
}

addEventListener('message', ({ data }: MessageEvent<Question>) => {
  if (data.text !== text) {
    text = data.text
    version += 1
  }
  const question = questions[data.name] as (...values: readonly unknown[]) => unknown
  postMessage({ id: data.id, value: question(...data.values) } satisfies Answer)
})
