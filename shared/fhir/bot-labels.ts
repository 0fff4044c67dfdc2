/**
 * Labels of a Bot: code that runs on request, or for a share of the calls, next to the live code in `executableCode`.
 * A label is an extension `bot-label` with `name`, `code`, and optionally `source` and `share`.
 */
import { badRequest } from '../core/errors.ts'
import { BOT_EXTENSION, botExtensions } from './bot-extensions.ts'
import { asArray, isObject, type Resource, toObjects } from './resource.ts'

/** The label of `executableCode`. */
export const LIVE = 'live'
const LABEL = `${BOT_EXTENSION}label`
const VERSION = `${BOT_EXTENSION}version`
const NAME = /^[A-Za-z][\w.-]{0,63}$/
/** Plain numbers are the Bot's own versions. */
const VERSION_NAME = /^(?!\d+$)[A-Za-z0-9][\w.+-]{0,63}$/
const BINARY = /^Binary\/[A-Za-z0-9\-.]{1,64}$/
const MOST_LABELS = 20
const PARTS: ReadonlySet<unknown> = new Set(['name', 'code', 'source', 'share'])

/** An Attachment whose URL names a Binary. */
export type Code = Readonly<Record<string, unknown>>

export interface LabelledCode {
  readonly code: Code
  readonly source: Code | undefined
}

interface BotLabel extends LabelledCode {
  readonly name: string
  /** Percentage of the calls without a label; 0: none. */
  readonly share: number
}

export function botLabels(bot: Resource): readonly BotLabel[] {
  return botExtensions(bot, 'label').flatMap(({ item }) => {
    const { name, code, source, share } = readParts(item)
    if (typeof name !== 'string' || !isObject(code)) return []
    return [
      {
        name,
        code,
        source: isObject(source) ? source : undefined,
        share: typeof share === 'number' ? share : 0,
      },
    ]
  })
}

/** Returns the code of a label, `live` included; undefined without it. */
export function codeAt(bot: Resource, name: string): LabelledCode | undefined {
  const { executableCode: code, sourceCode: source } = bot
  if (name !== LIVE) return botLabels(bot).find((label) => label.name === name)
  return isObject(code) ? { code, source: isObject(source) ? source : undefined } : undefined
}

/** Sets the live code, or adds or moves a label, which has no share then. */
export function withCode(bot: Resource, name: string, { code, source }: LabelledCode): Resource {
  if (name === LIVE) return { ...bot, executableCode: code, sourceCode: source }
  const label = { name, code, source, share: 0 }
  const labels = botLabels(bot)
  const isNew = labels.every((one) => one.name !== name)
  return withLabels(bot, [
    ...labels.map((one) => (one.name === name ? label : one)),
    ...(isNew ? [label] : []),
  ])
}

export function withLabels(bot: Resource, labels: readonly BotLabel[]): Resource {
  const found = new Set(botExtensions(bot, 'label').map(({ item }) => item))
  const items = asArray(bot.extension)
  const extension = [
    ...items.filter((item) => !isObject(item) || !found.has(item)),
    ...labels.map(toExtension),
  ]
  return { ...bot, extension: extension.length === 0 ? undefined : extension }
}

function toExtension({ name, code, source, share }: BotLabel) {
  return {
    url: LABEL,
    extension: [
      { url: 'name', valueString: name },
      { url: 'code', valueAttachment: code },
      ...(source === undefined ? [] : [{ url: 'source', valueAttachment: source }]),
      ...(share === 0 ? [] : [{ url: 'share', valueInteger: share }]),
    ],
  }
}

/** Returns the Bot with the label's code as its executable code; undefined without that label. */
export function atLabel(bot: Resource, name: string): Resource | undefined {
  if (name === LIVE) return bot
  const label = codeAt(bot, name)
  return label && withCode(bot, LIVE, label)
}

/** Returns the name that the code was deployed with. */
export function versionName(code: unknown): string | undefined {
  const items = isObject(code) ? toObjects(code.extension) : []
  const found = items.find(({ url }) => url === VERSION)
  return typeof found?.valueString === 'string' ? found.valueString : undefined
}

export function named(code: Code, version: string): Code {
  return { ...code, extension: [{ url: VERSION, valueString: version }] }
}

/** Errors: 400 for labels that do not begin with a letter, or have other characters. */
export function checkLabelName(name: string, expression: string): void {
  if (NAME.test(name)) return
  throw badRequest(
    'A label must begin with a letter, followed by at most 63 letters, digits, ., _ or -',
    expression,
  )
}

/** Errors: 400 for plain numbers and other characters. */
export function checkVersionName(name: string, expression: string): void {
  if (VERSION_NAME.test(name)) return
  throw badRequest(
    'A version must have 1 to 64 letters, digits, ., _, + or -, and must not be a whole number',
    expression,
  )
}

/** Errors: 400 for invalid or repeated labels, and for shares above 100 in total. */
export function checkLabels(bot: Resource): void {
  const found = botExtensions(bot, 'label')
  if (found.length > MOST_LABELS) throw badRequest(`A Bot has at most ${MOST_LABELS} labels`)
  const names = new Set<unknown>([LIVE])
  let shared = 0
  for (const { item, expression } of found) {
    const { name, code, source, share = 0 } = readParts(item)
    const parts = asArray(item.extension)
    const urls = new Set(parts.map((part) => (isObject(part) ? part.url : undefined)))
    if (urls.size < parts.length || !urls.isSubsetOf(PARTS)) {
      throw badRequest('A bot-label has one name, code, source and share', expression)
    }
    if (typeof name !== 'string') throw badRequest('A bot-label must have a name', expression)
    checkLabelName(name, expression)
    if (names.has(name)) throw badRequest(`The label "${name}" is there already`, expression)
    names.add(name)
    if (!isObject(code) || !BINARY.test(String(code.url))) {
      throw badRequest('A bot-label must have code: an Attachment of a Binary', expression)
    }
    if (source !== undefined && !isObject(source)) {
      throw badRequest('The source of a bot-label must be an Attachment', expression)
    }
    if (!Number.isInteger(share) || Number(share) < 0 || Number(share) > 100) {
      throw badRequest('The share of a bot-label must be a whole number up to 100', expression)
    }
    shared += Number(share)
    if (shared > 100) throw badRequest('The shares of labels exceed 100 %', expression)
  }
}

function readParts({ extension }: Readonly<Record<string, unknown>>): Record<string, unknown> {
  return Object.fromEntries(
    toObjects(extension).map((part) => {
      const { url, valueString, valueCode, valueAttachment, valueInteger } = part
      return [String(url), valueString ?? valueCode ?? valueAttachment ?? valueInteger] as const
    }),
  )
}
