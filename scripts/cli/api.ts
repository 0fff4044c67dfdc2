/** `botica api`: sends one request to the service, and prints the response or parts of it. */
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { buffer } from 'node:stream/consumers'
import { setTimeout as delay } from 'node:timers/promises'
import type { MedplumClient } from '@medplum/core'
import { contentTypes, readResponseError } from './calls.ts'
import { callerFolder } from './folder.ts'
import { printAnswer } from './print.ts'

interface ApiRequest {
  readonly method: string
  readonly target: string
  readonly body: string | undefined
}

export interface ApiOptions {
  readonly type?: string
  readonly header: readonly string[]
  readonly select?: string
  readonly include?: true
  readonly wait?: true
}

interface Body {
  readonly content: Buffer
  readonly type: string | undefined
}

const FHIR = 'fhir/R4/'
const POLL_MS = 200

/**
 * `target` is a path below `/fhir/R4/`, a path from the root with a leading slash, or an address of the service.
 * `body` is JSON, the name of a file, or `-` for standard input. Errors: the OperationOutcome of a response that is not 2xx.
 */
export async function api(
  medplum: MedplumClient,
  { method, target, body: given }: ApiRequest,
  options: ApiOptions,
): Promise<void> {
  const url = resolveTarget(medplum.getBaseUrl(), target)
  const headers = readHeaders(options)
  headers.set('Authorization', `Bearer ${medplum.getAccessToken()}`)
  const body = given === undefined ? undefined : await readBody(given)
  if (body !== undefined && !headers.has('Content-Type')) {
    headers.set('Content-Type', body.type ?? chooseType(method, url, body.content))
  }
  const content = body && new Uint8Array(body.content)
  const init = { method: method.toUpperCase(), headers, redirect: 'manual' } as const
  let response = await fetch(url, content ? { ...init, body: content } : init)
  if (options.wait) response = await waitForResult(response, url.origin, headers)
  if (response.status >= 400) throw await readResponseError(response)
  await print(response, options)
}

/** Errors: an address of another server, which would receive the token. */
function resolveTarget(baseUrl: string, target: string): URL {
  const url = URL.canParse(target)
    ? new URL(target)
    : new URL(target.replace(/^(?!\/)/, `/${FHIR}`).slice(1), baseUrl)
  if (url.origin === new URL(baseUrl).origin) return url
  throw new Error(`${target} is not an address of ${baseUrl}, which the client is signed in to`)
}

function readHeaders({ header, type, wait }: ApiOptions): Headers {
  const headers = new Headers()
  for (const line of header) {
    const [, name, value] = /^([^:\s]+):\s*(.*)$/.exec(line) ?? []
    if (name === undefined || value === undefined) {
      throw new Error(`Header "${line}" must have the form "Name: value"`)
    }
    headers.append(name, value)
  }
  if (type !== undefined) headers.set('Content-Type', type)
  if (wait) headers.append('Prefer', 'respond-async')
  return headers
}

async function readBody(given: string): Promise<Body> {
  if (/^\s*[[{]/.test(given)) return { content: Buffer.from(given), type: undefined }
  if (given === '-') return { content: await buffer(process.stdin), type: undefined }
  const [type] = contentTypes[path.extname(given).toLowerCase()] ?? []
  const content = await readFile(path.resolve(callerFolder(), given))
  return { content, type: type === 'application/json' ? undefined : type }
}

/** Returns the media type of JSON by method and content; other content is sent as bytes. */
function chooseType(method: string, { pathname }: URL, content: Buffer): string {
  const text = content.toString()
  if (!/^\s*[[{]/.test(text)) return 'application/octet-stream'
  if (method.toUpperCase() === 'PATCH') return 'application/json-patch+json'
  const isResource = pathname.includes(`/${FHIR.slice(0, -1)}`) && text.includes('"resourceType"')
  return isResource ? 'application/fhir+json' : 'application/json'
}

/** Polls the status address of an accepted request until it has a result. */
async function waitForResult(first: Response, origin: string, sent: Headers): Promise<Response> {
  const headers = { Authorization: sent.get('Authorization') ?? '' }
  const place = first.headers.get('content-location')
  if (first.status !== 202 || place === null || new URL(place).origin !== origin) return first
  for (;;) {
    await delay(POLL_MS)
    const response = await fetch(place, { headers })
    if (response.status !== 202) return response
    await response.body?.cancel()
  }
}

async function print(response: Response, { include, select }: ApiOptions): Promise<void> {
  if (include) {
    console.log(`${response.status} ${response.statusText}`)
    for (const [name, value] of response.headers) console.log(`${name}: ${value}`)
    console.log('')
  }
  const content = Buffer.from(await response.arrayBuffer())
  const type = response.headers.get('content-type') ?? ''
  const isJson = /json(?:;|$)/.test(type) && !/ndjson/.test(type)
  if (select !== undefined) await printSelected(content.toString(), select)
  else if (isJson && content.length > 0) printAnswer({ text: content.toString(), isJson })
  else if (process.stdout.isTTY) printAnswer({ text: content.toString(), isJson: false })
  else process.stdout.write(content)
}

/** Prints each value of a FHIRPath expression in a line: texts as they are, others as JSON. */
async function printSelected(text: string, expression: string): Promise<void> {
  // Loaded on demand: other commands do not need the engine.
  const { engine } = await import('../../shared/fhirpath/engine.ts')
  const values = await engine().fhirpath.evaluate(JSON.parse(text), expression)
  for (const value of values) {
    console.log(typeof value === 'string' ? value : JSON.stringify(value))
  }
}
