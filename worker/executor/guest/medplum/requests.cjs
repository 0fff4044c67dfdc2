/**
 * Requests of a bot through `host.call`, at most 20 in flight. The isolate has no token: the worker uses the run's
 * identity.
 */

const { ContentType } = require('./constants.cjs')
const decimals = require('../decimals.cjs')
const { OperationOutcomeError, badRequest, isOperationOutcome } = require('./outcomes.cjs')

const maxConcurrent = 20
const fhirPath = 'fhir/R4/'
const accept = 'application/fhir+json, */*; q=0.1'

// An isolate serves runs in sequence; pending requests of a run are dropped at its end.
let run = { host, context: undefined, open: 0, waiting: [] }

function startRun(runHost, context) {
  run = { host: runHost, context, open: 0, waiting: [] }
}

function currentContext() {
  return run.context ?? host.context
}

function baseUrl() {
  return currentContext().baseUrl
}

async function call(kind, request) {
  const own = run
  if (own.open >= maxConcurrent) await new Promise((resolve) => own.waiting.push(resolve))
  else own.open++
  try {
    const answer = JSON.parse(await own.host.call(kind, JSON.stringify(request)))
    if (typeof answer.error === 'string') throw new OperationOutcomeError(badRequest(answer.error))
    return answer
  } finally {
    const next = own.waiting.shift()
    if (next === undefined) own.open--
    else next()
  }
}

/** True for an address of another service. */
function isForeign(url) {
  return /^([a-z][a-z\d+.-]*:|\/\/)/i.test(url) && !url.startsWith(baseUrl())
}

function serverPath(url) {
  const text = String(url)
  if (isForeign(text)) {
    throw new OperationOutcomeError(
      badRequest(`Not an address of this service: ${text}; use fetch`),
    )
  }
  const path = (text.startsWith(baseUrl()) ? text.slice(baseUrl().length) : text).replace(
    /^\/+/,
    '',
  )
  return path.startsWith(fhirPath) ? path.slice(fhirPath.length) : `/${path}`
}

function isBytes(body) {
  return body instanceof ArrayBuffer || ArrayBuffer.isView(body)
}

function bodyText(body, contentType) {
  if (typeof body === 'string') return body
  if (contentType === ContentType.HL7_V2) return String(body)
  if (contentType === ContentType.FORM_URL_ENCODED) {
    const { URLSearchParams } = require('../web/url.cjs')
    return new URLSearchParams(body).toString()
  }
  return decimals.stringify(body)
}

/** Like the SDK, treats empty and false as no body. */
async function encodeBody(given, contentType) {
  const body = typeof given?.arrayBuffer === 'function' ? await given.arrayBuffer() : given
  if (!body) return {}
  if (!isBytes(body)) return { body: bodyText(body, contentType) }
  const { base64Encode, toBytes } = require('../web/encoding.cjs')
  return { body: base64Encode(toBytes(body)), encoding: 'base64' }
}

function requestHeaders(body, contentType, options) {
  const headers = { Accept: accept, 'X-Medplum': 'extended' }
  if (body) headers['Content-Type'] = contentType ?? ContentType.FHIR_JSON
  const extra = options?.headers ?? {}
  const pairs = typeof extra.entries === 'function' ? [...extra.entries()] : Object.entries(extra)
  return { ...headers, ...Object.fromEntries(pairs) }
}

function findHeader(answer, name) {
  const key = Object.keys(answer.headers ?? {}).find((found) => found.toLowerCase() === name)
  return key === undefined ? '' : String(answer.headers[key])
}

function answerText(answer) {
  if (answer.encoding !== 'base64') return answer.body ?? ''
  const { base64Decode, utf8Decode } = require('../web/encoding.cjs')
  return utf8Decode(base64Decode(answer.body ?? ''))
}

function answerBytes(answer) {
  const { base64Decode, utf8Encode } = require('../web/encoding.cjs')
  const body = answer.body ?? ''
  return answer.encoding === 'base64' ? base64Decode(body) : utf8Encode(body)
}

function parsed(answer) {
  const text = answerText(answer)
  if (text === '') return undefined
  return findHeader(answer, 'content-type').includes('json') ? decimals.parse(text) : text
}

function failure(answer) {
  const text = answerText(answer)
  try {
    const body = JSON.parse(text)
    if (isOperationOutcome(body)) return new OperationOutcomeError(body)
  } catch {
    // Not JSON: only the status and the text are known.
  }
  return new OperationOutcomeError(badRequest(text || `HTTP status ${answer.status}`))
}

/** Returns the raw answer. Errors: OperationOutcomeError for a status from 400. */
async function send(method, path, { body, contentType, options } = {}) {
  const headers = requestHeaders(body, contentType, options)
  const request = { method, path, headers, ...(await encodeBody(body, contentType)) }
  const answer = await call('fhir', request)
  if (answer.status >= 400) throw failure(answer)
  return answer
}

/** Returns an object for JSON, otherwise text; undefined when empty. */
async function ask(method, path, request) {
  return parsed(await followed(await send(method, path, request), request?.options))
}

/** Returns the location of the result, in the same places as the SDK. */
function findLocation(answer) {
  const named = findHeader(answer, 'content-location') || findHeader(answer, 'location')
  if (named) return named
  const body = parsed(answer)
  return isOperationOutcome(body) ? body.issue?.[0]?.diagnostics : undefined
}

/** Follows redirects and polls asynchronous jobs, as the SDK's options ask. */
async function followed(answer, options) {
  const { status } = answer
  const isElsewhere =
    (status === 200 && options?.followRedirectOnOk) ||
    (status === 201 && options?.followRedirectOnCreated)
  const isLater = status === 202 && options?.pollStatusOnAccepted
  let place = isElsewhere || isLater ? findLocation(answer) : undefined
  if (place === undefined) return answer
  const { Prefer: _, ...headers } = options.headers ?? {}
  let found = await send('GET', serverPath(place), { options: { headers } })
  while (isLater && found.status === 202) {
    place = findLocation(found) ?? place
    await new Promise((resolve) => setTimeout(resolve, options.pollStatusPeriod ?? 1000))
    found = await send('GET', serverPath(place), { options: { headers } })
  }
  return found
}

module.exports = {
  answerBytes,
  ask,
  baseUrl,
  call,
  currentContext,
  findHeader,
  isForeign,
  parsed,
  send,
  serverPath,
  startRun,
}
