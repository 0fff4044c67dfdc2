/**
 * `Bot/:id/$deploy`: stores code as a Binary in `executableCode`, or under a label; TypeScript is also stored as the
 * source.
 */

import { once } from 'node:events'
import { Worker } from 'node:worker_threads'
import { type AnyNode, type ImportDeclaration, parse } from 'acorn'
import pLimit from 'p-limit'
import { may } from '../../access/policy.ts'
import { servicePrincipal, systemPrincipal } from '../../access/principal.ts'
import { codeLocation, MAX_CODE_BYTES } from '../../bots/bot.ts'
import { checkCode } from '../../bots/code.ts'
import { walk } from '../../bots/code-uses.ts'
import { requireNewVersion } from '../../bots/versions.ts'
import { allOk, badRequest, forbidden, issue, notFound } from '../../core/errors.ts'
import { readDeclarations } from '../../fhir/bot-declarations.ts'
import {
  checkLabelName,
  checkVersionName,
  codeAt,
  type LabelledCode,
  LIVE,
  named,
  withCode,
} from '../../fhir/bot-labels.ts'
import { isObject, type Resource } from '../../fhir/resource.ts'
import { readBinaryContent, readWhole } from '../../request/binary/content.ts'
import { readKnownInputs } from '../../request/parameters.ts'
import { outcomeReply } from '../../request/reply.ts'
import type { InputTexts, Operation, OperationCall } from '../../request/request.ts'
import type { Repository } from '../../store/repository.ts'
import { platformMeta } from '../../store/rows/version.ts'

const JAVASCRIPT = 'text/javascript'
const TYPESCRIPT = 'text/typescript'

const INPUTS: InputTexts = {
  code: 'text!: The code',
  filename: 'text: Its extension determines the language',
  label: 'text: Stores the code under this label; default: live, which runs',
  version: 'text: Name of this version; default: the version of the Bot',
}

export const deploy: Operation = {
  name: 'deploy',
  on: [{ type: 'Bot', level: 'instance' }],
  methods: ['POST'],
  inputs: INPUTS,
  text: {
    summary: 'Deploy the code of a bot',
    description:
      'TypeScript or JavaScript, 5 MiB at most. Warnings name missing modules, and secrets and hosts that the code uses and the Bot does not name.',
    body: INPUTS,
    example: {
      filename: 'bot.ts',
      code: 'export async function handler(medplum, event) { return event.input }',
    },
    answer: 'OperationOutcome',
  },
  async run(call) {
    const { services, principal, id = '' } = call
    const { repository } = services
    const current = await repository.read(principal, 'Bot', id)
    if (current.content === undefined) throw notFound()
    const bot = JSON.parse(current.content) as Resource
    const project = await services.principals.project(platformMeta(current).project ?? '')
    if (!project?.features.includes('bots')) throw badRequest('Bots not enabled')
    const declared = readDeclarations(bot, project.requiresDeclarations === true)
    const given = readDeployment(call)
    if (given.code === undefined) {
      if (given.label !== LIVE || given.version !== undefined) {
        throw badRequest('"code" is missing: $promote moves labels', 'code')
      }
      const code = await currentCode(call, repository, bot)
      return deployed(checkCode(code, executableTitle(bot) ?? 'index.js', declared))
    }
    if (!may(principal, 'Bot', 'update')) throw forbidden()
    if (Buffer.byteLength(given.code) > MAX_CODE_BYTES) throw badRequest('Bot code too large')
    const { filename, label, version } = given
    const code = await toJavaScript(given.code, filename, call.request.signal)
    const warnings = checkCode(code, filename, declared)
    // Other clients compile the code themselves and store the source first.
    const source = isTypeScript(filename) ? given.code : undefined
    // Update access to the Bot is enough to deploy: its policy need not mention Binary.
    const writer = servicePrincipal(project, { profile: principal.profile })
    await repository.transaction(async (inside) => {
      const store = async (contentType: string, text: string) => {
        const binary = await inside.create(writer, {
          resourceType: 'Binary',
          contentType,
          securityContext: { reference: `Bot/${id}` },
          data: Buffer.from(text).toString('base64'),
        })
        const stored = { contentType, url: `Binary/${binary.id}`, title: filename }
        return version === undefined ? stored : named(stored, version)
      }
      const executableCode = await store(JAVASCRIPT, code)
      const sourceCode = source === undefined ? undefined : await store(TYPESCRIPT, source)
      await inside.patch(principal, { type: 'Bot', id }, async (latest) => {
        // Checked again after each lost race, so that concurrent deployments cannot take one name.
        if (version !== undefined) {
          await requireNewVersion({ repository: inside }, systemPrincipal(project), id, version)
        }
        return setCode(latest, label, { code: executableCode, source: sourceCode })
      })
    })
    return deployed(warnings)
  },
}

/** The source of live code stays if there is none: other clients have stored it before. */
function setCode(bot: Resource, label: string, { code, source }: LabelledCode): Resource {
  const kept = label === LIVE ? codeAt(bot, LIVE)?.source : undefined
  return withCode(bot, label, { code, source: source ?? kept })
}

/** Warnings follow `All OK`, since clients show the first issue. */
function deployed(warnings: readonly string[]) {
  const issues = warnings.map((text) => issue('warning', 'not-supported', text))
  return outcomeReply(200, { ...allOk, issue: [...allOk.issue, ...issues] })
}

/** Errors: 400 also for unknown names: without its label the code would go live. */
function readDeployment(call: OperationCall) {
  const inputs = readKnownInputs(call)
  const label = inputs.text('label') ?? LIVE
  checkLabelName(label, 'label')
  const version = inputs.text('version')
  if (version !== undefined) checkVersionName(version, 'version')
  return { code: inputs.text('code'), filename: baseName(inputs.text('filename')), label, version }
}

function baseName(filename: string | undefined): string {
  const name = (filename ?? '').split(/[\\/]/).at(-1)?.trim().slice(0, 200) ?? ''
  return name === '' ? 'index.js' : name
}

async function currentCode(
  { services, principal }: OperationCall,
  repository: Repository,
  bot: Resource,
): Promise<string> {
  const location = codeLocation(bot, services.config.baseUrl)
  if (location === undefined) throw badRequest('Bot missing executable code')
  if (location === null) throw badRequest('Executable code is not a Binary')
  if (location === 'inline') return String(bot.code)
  const content = readBinaryContent(await repository.read(principal, 'Binary', location.binary))
  return (await readWhole(services, content, MAX_CODE_BYTES)).toString()
}

function executableTitle(bot: Resource): string | undefined {
  const title = isObject(bot.executableCode) ? bot.executableCode.title : undefined
  return typeof title === 'string' ? title : undefined
}

// TypeScript to JavaScript: types become blanks, which keeps error positions, and imports used only as types go, since
// bots write `import { BotEvent, MedplumClient } from '@medplum/core'`.

function isTypeScript(filename: string): boolean {
  return /\.[cm]?ts$/i.test(filename)
}

/** Returns other files unchanged. Errors: 400 with line and column. */
export async function toJavaScript(
  code: string,
  filename: string,
  signal?: AbortSignal,
): Promise<string> {
  return isTypeScript(filename) ? withoutTypeImports(await strip(code, filename, signal)) : code
}

const STRIP = `const { parentPort, workerData } = require('node:worker_threads')
const { stripTypeScriptTypes } = require('node:module')
try {
  parentPort.postMessage({ stripped: stripTypeScriptTypes(workerData, { mode: 'strip' }) })
} catch ({ message, stack, code }) {
  parentPort.postMessage({ message, stack, code })
}`

interface Stripped {
  /** Absent after an error, of which the others are. */
  readonly stripped?: string
  readonly message?: string
  readonly stack?: string
  readonly code?: string
}

/** One at a time: a thread takes up to 150 MB. */
const compiling = pLimit(1)
const MAX_COMPILE_MS = 30_000

/** Uses a separate thread: code that is nested too deeply breaks the compiler for all later code of the thread. */
async function strip(text: string, filename: string, left?: AbortSignal): Promise<string> {
  const [answer]: Stripped[] = await compiling(async () => {
    left?.throwIfAborted()
    const worker = new Worker(STRIP, { eval: true, workerData: text })
    // One after the limit would have no other listener.
    worker.on('error', () => undefined)
    const signal = AbortSignal.timeout(MAX_COMPILE_MS)
    try {
      return await once(worker, 'message', { signal })
    } catch (error) {
      throw signal.aborted ? badRequest(`${filename}: the code takes too long to compile`) : error
    } finally {
      await worker.terminate()
    }
  })
  const { stripped, message, stack = '', code = '' } = answer ?? {}
  if (stripped !== undefined) return stripped
  if (code.endsWith('TYPESCRIPT_SYNTAX'))
    throw badRequest(`${filename}: ${message}${placeIn(stack)}`)
  throw badRequest(`${filename}: the code is nested too deeply`)
}

/** Parses Node's code frame. */
function placeIn(stack: string): string {
  const [head = '', ...lines] = stack.split('\n')
  const line = /:(\d+)$/.exec(head)?.[1]
  if (line === undefined) return ''
  const shown = lines.slice(0, lines.findIndex((text) => /^\w*Error\b/.test(text)) - 1)
  const carets = shown.find((text) => /^\s*\^+$/.test(text))
  // Errors at the end of the file have no carets.
  const column = carets === undefined ? (shown.at(-1)?.length ?? 0) : carets.indexOf('^')
  return ` (line ${line}, column ${column + 1})`
}

function withoutTypeImports(code: string): string {
  const imports: ImportDeclaration[] = []
  const used = new Set<string>()
  try {
    const program = parse(code, {
      ecmaVersion: 'latest',
      sourceType: 'module',
      allowHashBang: true,
    })
    walk(program, (node) => {
      if (node.type === 'ImportDeclaration') imports.push(node)
      for (const name of usedIn(node)) used.add(name)
    })
  } catch {
    // CommonJS or invalid: the next check decides.
    return code
  }
  // Joined once: a copy of the code for each import would take minutes.
  imports.sort((a, b) => a.start - b.start)
  const pieces = imports.flatMap((node, i) => [
    code.slice(imports[i - 1]?.end ?? 0, node.start),
    withoutUnused(code, node, used),
  ])
  return [...pieces, code.slice(imports.at(-1)?.end ?? 0)].join('')
}

function usedIn(node: AnyNode): readonly string[] {
  const children: unknown[] = []
  for (const [key, value] of Object.entries(node)) {
    const isName =
      (node.type === 'MemberExpression' && key === 'property' && !node.computed) ||
      (node.type === 'Property' && key === 'key' && !node.computed && !node.shorthand) ||
      ((node.type === 'MethodDefinition' || node.type === 'PropertyDefinition') &&
        key === 'key' &&
        !node.computed) ||
      /^Import.*Specifier$/.test(node.type) ||
      (node.type === 'ExportSpecifier' && key === 'exported')
    if (!isName) children.push(...(Array.isArray(value) ? value : [value]))
  }
  return children.flatMap((child) => (isIdentifier(child) ? [child.name] : []))
}

function isIdentifier(value: unknown): value is { readonly name: string } {
  return (
    typeof value === 'object' &&
    value !== null &&
    'type' in value &&
    value.type === 'Identifier' &&
    'name' in value
  )
}

/** Returns the import with blanks for unused names, which keeps later positions. */
function withoutUnused(code: string, node: ImportDeclaration, used: ReadonlySet<string>): string {
  const kept = node.specifiers.filter(({ local }) => used.has(local.name))
  const own = code.slice(node.start, node.end)
  if (kept.length === node.specifiers.length) return own
  const clauses = [
    ...kept.flatMap(({ type, local }) => (type === 'ImportDefaultSpecifier' ? [local.name] : [])),
    ...kept.flatMap(({ type, local }) =>
      type === 'ImportNamespaceSpecifier' ? [`* as ${local.name}`] : [],
    ),
  ]
  const named = kept.filter(({ type }) => type === 'ImportSpecifier')
  if (named.length > 0) {
    clauses.push(`{${named.map(({ start, end }) => code.slice(start, end)).join(',')}}`)
  }
  const text = kept.length === 0 ? '' : `import ${clauses.join(',')} from ${node.source.raw};`
  const breaks = own.replace(/[^\n]/g, '')
  return (text + breaks).padEnd(own.length)
}
