/** Mail settings of a Project: its server (`smtp…`, with the password among its secrets), and the recipients of dead letters. */
import { findSetting } from '../access/project-context.ts'
import { blockedReason, type Outbound } from '../core/config/outbound.ts'
import { badRequest } from '../core/errors.ts'
import { asArray, isObject, type Resource } from '../fhir/resource.ts'

export interface MailServer {
  /** A name or an address, as in a URL. */
  readonly host: string
  readonly port: number
  readonly user: string | undefined
  readonly password: string | undefined
  /** The sender of mails that name none. */
  readonly from: string
}

/** The secret with the password, which bots do not get. */
export const SMTP_PASSWORD = 'smtpPassword'
const OTHERS = ['smtpPort', 'smtpUser', 'smtpFrom']
const SUBMISSION_PORT = 587
/** Ports for submission, for which outbound rules need no entry; port 25 delivers to any server. */
const PORTS: ReadonlySet<string> = new Set(['465', '587', '2525'])
const SENDER = /^([^<>\r\n]*<)?[^\s@<>,]+@[^\s@<>,]+>?$/

/** Returns undefined for a Project without a mail server. */
export function readMailServer(project: Resource): MailServer | undefined {
  const text = (list: unknown, name: string) => {
    const value = findSetting(list, name)?.valueString
    return typeof value === 'string' && value !== '' ? value : undefined
  }
  const host = text(project.setting, 'smtpHost')
  const from = text(project.setting, 'smtpFrom')
  if (host === undefined || from === undefined) return undefined
  const port = findSetting(project.setting, 'smtpPort')?.valueInteger
  return {
    host,
    port: typeof port === 'number' ? port : SUBMISSION_PORT,
    user: text(project.setting, 'smtpUser'),
    password: text(project.secret, SMTP_PASSWORD),
    from,
  }
}

/** The address for the outbound rules, which normalizes the host as `fetch` does. */
export function mailServerUrl({ host, port }: Pick<MailServer, 'host' | 'port'>): URL {
  return new URL(`https://${host}:${port}`)
}

export function mailRules(targets: Outbound): Outbound {
  return { ...targets, ports: PORTS }
}

/** `setting` has the types of values that the settings need. Errors: 400 with the setting at fault. */
export function checkMailServer({ setting }: Resource): void {
  const items: readonly unknown[] = Array.isArray(setting) ? setting : []
  const place = (name: string) => settingPath(items, name)
  const { host, from, port } = readSettings(items)
  if (host === undefined) {
    const other = OTHERS.find((name) => findSetting(items, name) !== undefined)
    if (other !== undefined) throw badRequest(`${other} needs smtpHost`, place(other))
    return
  }
  if (from === undefined) throw badRequest('smtpHost needs smtpFrom, the sender', place('smtpHost'))
  if (!SENDER.test(String(from))) {
    throw badRequest('smtpFrom must be an address, or a name with <address>', place('smtpFrom'))
  }
  if (!(Number.isInteger(port) && Number(port) > 0 && Number(port) < 65_536)) {
    throw badRequest('smtpPort must be a port', place('smtpPort'))
  }
  if (!isHost(String(host))) {
    throw badRequest('smtpHost must be a name or an address, without a port', place('smtpHost'))
  }
}

/**
 * Checks a new address of the mail server by the outbound rules; rules that have changed since do not prevent other
 * changes of the Project. Errors: 400.
 */
export function checkMailTarget(
  before: Resource | undefined,
  after: Resource,
  targets: Outbound,
): void {
  const server = readMailServer(after)
  if (server === undefined) return
  const former = before && readMailServer(before)
  if (former?.host === server.host && former.port === server.port) return
  const refusal = blockedReason(mailRules(targets), mailServerUrl(server))
  if (refusal !== undefined) throw badRequest(refusal, settingPath(after.setting, 'smtpHost'))
}

function settingPath(setting: unknown, name: string): string {
  const index = asArray(setting).findIndex((item) => isObject(item) && item.name === name)
  return `Project.setting[${index}]`
}

function readSettings(items: readonly unknown[]) {
  return {
    host: findSetting(items, 'smtpHost')?.valueString,
    from: findSetting(items, 'smtpFrom')?.valueString,
    port: findSetting(items, 'smtpPort')?.valueInteger ?? SUBMISSION_PORT,
  }
}

function isHost(text: string): boolean {
  return /^(\[[0-9a-f:.]+\]|[\w.-]+)$/i.test(text) && URL.canParse(`https://${text}`)
}

const DEAD_LETTER_MAIL = 'deadLetterMail'
/** An address and nothing that could begin another header. */
const ADDRESS = /^[^\s,;<>"]+@[^\s,;<>"]+$/
const MOST_ADDRESSES = 10

/** Returns the addresses that get mails about dead letters, without invalid ones that earlier releases stored. */
export function deadLetterAddresses({ setting }: Resource): readonly string[] {
  return listedAddresses(setting)
    .filter((one) => ADDRESS.test(one))
    .slice(0, MOST_ADDRESSES)
}

/** Errors: 400 for an address that would get no mail. */
export function checkDeadLetterMail({ setting }: Resource): void {
  const addresses = listedAddresses(setting)
  if (addresses.length <= MOST_ADDRESSES && addresses.every((one) => ADDRESS.test(one))) return
  const reason = `${DEAD_LETTER_MAIL} must list at most ${MOST_ADDRESSES} e-mail addresses, with commas`
  throw badRequest(reason, settingPath(setting, DEAD_LETTER_MAIL))
}

function listedAddresses(setting: unknown): readonly string[] {
  const text = findSetting(setting, DEAD_LETTER_MAIL)?.valueString
  return typeof text === 'string' ? text.split(',').map((one) => one.trim()) : []
}
