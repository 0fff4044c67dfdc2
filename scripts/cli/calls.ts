/** Requests of the commands: deploy, call, runs, replay and live log. */
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { type MedplumClient, OperationOutcomeError } from '@medplum/core'
import type { BotRun } from '../../worker/bots/run-result.ts'
import type { BotFolder } from './folder.ts'

export interface Input {
  readonly contentType: string
  readonly kind: BotRun['inputKind']
  readonly text: string
}

export const contentTypes: Readonly<Record<string, readonly [string, BotRun['inputKind']]>> = {
  '.hl7': ['x-application/hl7-v2+er7', 'hl7'],
  '.json': ['application/json', 'json'],
  '.txt': ['text/plain', 'text'],
  '.csv': ['text/csv', 'text'],
  '.xml': ['application/xml', 'text'],
  '.ndjson': ['application/fhir+ndjson', 'text'],
}

const OTHER = ['application/octet-stream', 'bytes'] as const

/** Reads input by file extension, as `$execute` does by content type. */
export async function readInput(file: string): Promise<Input> {
  const [type, kind] = contentTypes[path.extname(file).toLowerCase()] ?? OTHER
  const text = (await readFile(file)).toString(kind === 'bytes' ? 'base64' : 'utf8')
  const isResource = kind === 'json' && text.includes('"resourceType"')
  return { contentType: isResource ? 'application/fhir+json' : type, kind, text }
}

export interface Run {
  readonly runId: string
  readonly status: string
  readonly started: string
  readonly durationMs: number
  readonly replayable?: boolean
  readonly error?: string
}

/** A parameter of an operation's answer; its value's name depends on its type, such as `valueString`. */
export interface Part {
  readonly name: string
  readonly valueString?: string
  readonly valueInteger?: number
  readonly part?: readonly Part[]
}

export interface Release {
  readonly label?: string
  readonly version?: string
}

/** Returns the service's warnings. Errors: those of the code, with line and column. */
export async function deployFile(
  medplum: MedplumClient,
  botId: string,
  file: string,
  { label, version }: Release = {},
): Promise<readonly string[]> {
  const code = await readFile(file, 'utf8')
  const url = medplum.fhirUrl('Bot', botId, '$deploy')
  const { issue } = await medplum.post(url, { code, filename: path.basename(file), label, version })
  const [, ...warnings]: { details?: { text?: string } }[] = issue
  return warnings.map(({ details }) => details?.text ?? '')
}

export interface Answer {
  readonly text: string
  readonly isJson: boolean
}

export async function call(bot: BotFolder, file: string, label?: string): Promise<Answer> {
  const { contentType, kind, text } = await readInput(file)
  const body = kind === 'bytes' ? Buffer.from(text, 'base64') : text
  const query = label === undefined ? '' : `?${new URLSearchParams({ label })}`
  return await post(bot, `$execute${query}`, contentType, body)
}

/** Replays a bot with the input of the named run, or of the latest failed one. */
export async function replay(bot: BotFolder, given: string | undefined): Promise<Answer> {
  const runId = given ?? (await latestFailure(bot))
  return await post(bot, '$replay', 'application/json', JSON.stringify({ runId }))
}

async function latestFailure(bot: BotFolder): Promise<string> {
  const failed = (await runs(bot, 100)).find(
    ({ status, replayable }) => status !== 'ok' && replayable,
  )
  if (failed !== undefined) return failed.runId
  throw new Error(
    'None of the last 100 runs failed with its input kept; inputs are kept by a service with BOT_INPUT_ARCHIVE=true, for a project whose setting has BOT_INPUT_ARCHIVE',
  )
}

export async function runs(bot: BotFolder, count: number): Promise<readonly Run[]> {
  const { parameter = [] }: { parameter?: Part[] } = await bot.medplum.get(
    bot.operation(`$runs?_count=${count}`),
  )
  return parameter.filter(({ name }) => name === 'run').map(parseRunPart)
}

function parseRunPart({ part = [] }: Part): Run {
  const run = readParts<Run>(part) as Run
  return { ...run, runId: run.runId.replace('urn:uuid:', '') }
}

/** Returns the values of parts by name; of parts with one name, the last. */
export function readParts<Values>(parts: readonly Part[]): Partial<Values> {
  const entries = parts.map(({ name, ...value }) => [name, Object.values(value)[0]])
  return Object.fromEntries(entries)
}

/** Calls `listener` with each event of `$logs`, and reconnects. */
export async function follow(
  bot: BotFolder,
  listener: (type: string, data: Record<string, string>) => void,
): Promise<void> {
  for (;;) {
    const answer = await fetch(bot.operation('$logs'), { headers: authHeaders(bot) })
    if (!answer.ok || answer.body === null) throw await readResponseError(answer)
    let rest = ''
    for await (const chunk of answer.body.pipeThrough(new TextDecoderStream())) {
      const events = `${rest}${chunk}`.split('\n\n')
      rest = events.pop() ?? ''
      for (const event of events) {
        const [, type, data] = /^event: (\w+)\ndata: (.*)$/.exec(event) ?? []
        if (type !== undefined && data !== undefined) listener(type, JSON.parse(data))
      }
    }
    await bot.medplum.refreshIfExpired()
  }
}

async function post(
  bot: BotFolder,
  name: string,
  contentType: string,
  body: string | Buffer<ArrayBuffer>,
): Promise<Answer> {
  const headers = { ...authHeaders(bot), 'Content-Type': contentType }
  const answer = await fetch(bot.operation(name), { method: 'POST', headers, body })
  if (!answer.ok) throw await readResponseError(answer)
  const isJson = /json/.test(answer.headers.get('content-type') ?? '')
  return { text: await answer.text(), isJson }
}

function authHeaders({ medplum }: BotFolder): Record<string, string> {
  return { Authorization: `Bearer ${medplum.getAccessToken()}` }
}

export async function readResponseError(answer: Response): Promise<Error> {
  const text = await answer.text()
  const isOutcome = text.startsWith('{"resourceType":"OperationOutcome"')
  if (isOutcome) return new OperationOutcomeError(JSON.parse(text))
  return new Error(`The service answered ${answer.status}: ${text}`)
}
