/** Mails of clients and bots: checks, parsing and the outbox. */

import { may } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import {
  badRequest,
  badStructure,
  forbidden,
  type HttpError,
  notFound,
  tooLarge,
  tooManyRequests,
} from '../core/errors.ts'
import { requireNamedMail } from '../fhir/bot-declarations.ts'
import { isObject, parseReference } from '../fhir/resource.ts'
import { fetchOutbound } from '../outbound/fetch-outside.ts'
import type { Mail, MailAttachment } from '../outbound/mails.ts'
import { decodeBase64, readBinaryContent, readWhole } from '../request/binary/content.ts'
import type { Services } from '../request/services.ts'
import { EMAIL_ADDRESS } from './fields.ts'

const MOST_RECIPIENTS = 50
const MOST_ATTACHMENTS = 50
const MOST_BYTES = 10_000_000
const MOST_AN_HOUR = 1000
const HOUR_SECONDS = 3600
type Body = Record<string, unknown>

const RECIPIENTS = ['to', 'cc', 'bcc', 'replyTo'] as const
const MAIL_FIELDS = new Set([
  ...RECIPIENTS,
  'from',
  'sender',
  'subject',
  'text',
  'html',
  'attachments',
])
const CONTENT_ID = /^[^\s<>]+$/
const ATTACHMENT_FIELDS = new Set(['content', 'encoding', 'path', 'filename', 'contentType', 'cid'])

/** For admins of a Project with the feature `email`. Errors: 400, 403, 413, 429. */
export async function sendEmail(
  services: Services,
  principal: Principal,
  body: unknown,
  signal: AbortSignal,
): Promise<void> {
  const mail = checkMail(services, principal, body)
  await countMail(services, principal)
  const room = MOST_BYTES - Buffer.byteLength(`${mail.text ?? ''}${mail.html ?? ''}`)
  if (room < 0) throw tooLarge()
  const attachments = await readAttachments(services, principal, {
    value: isObject(body) ? body.attachments : undefined,
    room,
    signal,
  })
  await services.repository.transaction((inside) =>
    inside.addMail(principal.project.id, {
      ...mail,
      ...(attachments.length > 0 ? { attachments } : {}),
    }),
  )
}

/** Checks all but the attachments. Errors: 400, 403. */
export function checkMail(
  { config }: Pick<Services, 'config'>,
  principal: Principal,
  body: unknown,
): Mail {
  if (!principal.isProjectAdmin || !principal.project.features.includes('email')) throw forbidden()
  if (!isObject(body)) throw badStructure('Content must be a JSON object')
  requireFields(body, MAIL_FIELDS, '')
  const mail = readMail(body, config)
  for (const address of [mail.to, mail.cc, mail.bcc].flatMap((list) => list ?? [])) {
    requireNamedMail(principal.declared, plainAddress(address))
  }
  return mail
}

/** Errors: 400 for a field that the mail would not have. */
function requireFields(body: Body, known: ReadonlySet<string>, prefix: string): void {
  const other = Object.keys(body).find((name) => !known.has(name))
  if (other === undefined) return
  const field = `${prefix}${other.slice(0, 64)}`
  throw badStructure(`Unknown field ${field}`, field)
}

function readMail(body: Body, { mailApprovedSenders }: Services['config']): Mail {
  const [to, cc, bcc, replyTo] = RECIPIENTS.map((name) => parseAddresses(body, name))
  if (to === undefined || to.length === 0) throw badRequest('to is required', 'to')
  const recipients = to.length + (cc?.length ?? 0) + (bcc?.length ?? 0)
  if (recipients > MOST_RECIPIENTS)
    throw badRequest(`More than ${MOST_RECIPIENTS} recipients`, 'to')
  const subject = optionalString(body, 'subject')
  if (subject === undefined) throw badRequest('subject is required', 'subject')
  const [from, sender] = ['from', 'sender'].map((name) => {
    const [address] = parseAddresses(body, name) ?? []
    return address !== undefined && mailApprovedSenders.includes(plainAddress(address))
      ? address
      : undefined
  })
  const [text, html] = [optionalString(body, 'text'), optionalString(body, 'html')]
  return {
    kind: 'client',
    to,
    // Prevents header injection by line breaks.
    subject: subject.replace(/\s+/g, ' '),
    ...(text === undefined ? {} : { text }),
    ...(html === undefined ? {} : { html }),
    ...(cc === undefined ? {} : { cc }),
    ...(bcc === undefined ? {} : { bcc }),
    ...(replyTo === undefined ? {} : { replyTo }),
    ...(from === undefined ? {} : { from }),
    ...(sender === undefined ? {} : { sender }),
  }
}

function optionalString(body: Body, name: string): string | undefined {
  const value = body[name]
  if (value === undefined || value === null || value === '') return undefined
  if (typeof value === 'string') return value
  throw badRequest(`${name} must be a string`, name)
}

/** Accepts text, `{name, address}`, or a list of both. Errors: 400. */
function parseAddresses(body: Body, name: string): string[] | undefined {
  const value = body[name]
  if (value === undefined || value === null || value === '') return undefined
  const items: readonly unknown[] = Array.isArray(value) ? value : [value]
  return items.flatMap((item) => {
    if (isObject(item) && typeof item.address === 'string') {
      return [composeMailbox(item.name, item.address, name)]
    }
    if (typeof item === 'string') return splitList(item).map((one) => parseMailbox(one, name))
    throw invalidMailbox(name)
  })
}

function splitList(text: string): string[] {
  return (text.match(/(?:"[^"]*"|[^,"])+/g) ?? []).map((item) => item.trim())
}

const MAILBOX = /^((?:[^"\\<>,;:]|"[^"\\]*")*)<([^<>]*)>$/
/** Others are quoted: a mailer could read an address or a comment in them. */
const PLAIN_NAME = /^[^@()"]*$/

/**
 * Returns the text of one mailbox. Errors: 400 for a list or a group, whose other members the mailer would send to
 * unchecked.
 */
function parseMailbox(text: string, field: string): string {
  if (/\p{Cc}/u.test(text)) throw invalidMailbox(field)
  const [, name = '', address = text] = MAILBOX.exec(text) ?? []
  const composed = composeMailbox(name, address, field)
  return PLAIN_NAME.test(name) ? text : composed
}

function composeMailbox(name: unknown, address: string, field: string): string {
  const plain = address.trim()
  if (!EMAIL_ADDRESS.test(plain) || /\p{Cc}/u.test(plain)) throw invalidMailbox(field)
  // Drops characters that a quoted name must not contain.
  const display = typeof name === 'string' ? name.replace(/["\\\s\p{Cc}]+/gu, ' ').trim() : ''
  return display === '' ? plain : `"${display}" <${plain}>`
}

function invalidMailbox(field: string): HttpError {
  return badRequest(`${field} must be an address or a list of addresses`, field)
}

function plainAddress(text: string): string {
  return (/<([^<>]*)>\s*$/.exec(text)?.[1] ?? text).trim()
}

/** Errors: 429. */
async function countMail({ redis }: Services, { project }: Principal): Promise<void> {
  const hour = Math.floor(Date.now() / 1000 / HOUR_SECONDS)
  const key = `botica:mails:${project.id}:${hour}`
  const count = await redis.incr(key)
  if (count === 1) await redis.expire(key, HOUR_SECONDS)
  if (count <= MOST_AN_HOUR) return
  throw tooManyRequests(HOUR_SECONDS - (Math.floor(Date.now() / 1000) % HOUR_SECONDS))
}

interface Attachments {
  readonly value: unknown
  readonly room: number
  readonly signal: AbortSignal
}

/** `room`: total bytes. Errors: 400, 413. */
async function readAttachments(
  services: Services,
  principal: Principal,
  { value, room, signal }: Attachments,
): Promise<MailAttachment[]> {
  if (value === undefined || value === null) return []
  if (!Array.isArray(value) || !value.every(isObject) || value.length > MOST_ATTACHMENTS) {
    throw badRequest('attachments must be a short list of objects', 'attachments')
  }
  const attachments: MailAttachment[] = []
  let left = room
  for (const [i, item] of value.entries()) {
    requireFields(item, ATTACHMENT_FIELDS, `attachments[${i}].`)
    const content = await attachmentBytes(services, principal, {
      item,
      place: `attachments[${i}]`,
      room: left,
      signal,
    })
    left -= content.length
    if (left < 0) throw tooLarge()
    const [filename, contentType, cid] = ['filename', 'contentType', 'cid'].map((name) =>
      optionalString(item, name),
    )
    if (cid !== undefined && !CONTENT_ID.test(cid)) {
      throw badRequest('cid must have no spaces and brackets', `attachments[${i}].cid`)
    }
    attachments.push({
      content: content.toString('base64'),
      ...(filename === undefined ? {} : { filename }),
      ...(contentType === undefined ? {} : { contentType }),
      ...(cid === undefined ? {} : { cid }),
    })
  }
  return attachments
}

interface AttachedItem {
  readonly item: Body
  readonly place: string
  readonly room: number
  readonly signal: AbortSignal
}

async function attachmentBytes(
  services: Services,
  principal: Principal,
  { item, place, room, signal }: AttachedItem,
): Promise<Buffer> {
  const path = optionalString(item, 'path')
  if (path === undefined) return contentBytes(item, place)
  if (item.content !== undefined) {
    throw badRequest('An attachment has content or a path, not both', place)
  }
  const reference = parseReference(path)
  if (reference?.type === 'Binary') {
    if (!may(principal, 'Binary', 'read')) throw forbidden()
    const found = await services.repository.read(principal, 'Binary', reference.id)
    if (found.content === undefined) throw notFound()
    return await readWhole(services, readBinaryContent(found), room)
  }
  if (!/^https:\/\//i.test(path))
    throw badRequest('path must be a Binary or an https address', place)
  const outgoing = {
    url: path,
    method: 'GET',
    headers: {},
    body: undefined,
    redirect: 'follow',
    maxBytes: room,
  }
  const rules = { ...services.config.hookTargets, named: principal.declared?.hosts?.rules }
  const fetched = await fetchOutbound(outgoing, rules, signal).catch((error: Error) => {
    throw badRequest(`An attachment could not be fetched: ${error.message}`, place)
  })
  if (fetched.status !== 200) {
    throw badRequest(`An attachment could not be fetched: ${fetched.status}`, place)
  }
  return fetched.body
}

/** Decodes text, base64 if so declared, or bytes in the JSON form of a Buffer. */
function contentBytes({ content, encoding }: Body, place: string): Buffer {
  if (typeof content === 'string') {
    if (encoding !== 'base64') return Buffer.from(content)
    const bytes = decodeBase64(content)
    if (bytes === undefined) throw badRequest('content must be base64', place)
    return bytes
  }
  const isBytes = isObject(content) && content.type === 'Buffer' && Array.isArray(content.data)
  if (!isBytes) throw badRequest('An attachment needs content or a path', place)
  return Buffer.from(content.data as number[])
}
