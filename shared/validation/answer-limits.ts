/** Limits of answers, from extensions of their questions. https://hl7.org/fhir/R4/questionnaire-profiles.html */

import { attempt } from '../core/errors.ts'
import { toNumber } from '../fhir/json.ts'
import { isObject, STANDARD_URL, targetIn, toObjects } from '../fhir/resource.ts'
import { parseDate } from '../fhir/values.ts'
import { compiledPattern } from '../fhirpath/engine.ts'

type Item = Readonly<Record<string, unknown>>

function extensionValues({ extension }: Item, name: string): readonly unknown[] {
  return toObjects(extension)
    .filter(({ url }) => url === `${STANDARD_URL}${name}`)
    .map(valueIn)
}

function valueIn(item: Item): unknown {
  const name = Object.keys(item).find((key) => key.startsWith('value'))
  return name === undefined ? undefined : item[name]
}

/** Returns error messages for one answer, to follow the item's name. */
export function limitsBroken(value: unknown, definition: Item): readonly string[] {
  const of = (name: string) => extensionValues(definition, name)
  return [
    ...of('minValue').flatMap((least) =>
      compare(value, least) === 'below' ? `takes ${least} at least` : [],
    ),
    ...of('maxValue').flatMap((most) =>
      compare(value, most) === 'above' ? `takes ${most} at most` : [],
    ),
    ...of('maxDecimalPlaces').flatMap((most) =>
      decimalPlaces(value) > Number(most) ? `takes ${most} decimal places` : [],
    ),
    ...of('minLength').flatMap((least) =>
      typeof value === 'string' && [...value].length < Number(least)
        ? `takes ${least} characters at least`
        : [],
    ),
    ...of('regex').flatMap((pattern) => (isOfPattern(value, pattern) ? [] : `takes ${pattern}`)),
    ...notAmong(of('mimeType'), isObject(value) ? value.contentType : undefined),
    ...notAmong(of('questionnaire-referenceResource'), targetIn(value)?.type),
    ...notAmong(
      of('questionnaire-unitOption').map((unit) => (isObject(unit) ? unit.code : undefined)),
      isObject(value) && value.value !== undefined ? (value.code ?? value.unit) : undefined,
    ),
  ]
}

/** Returns error messages for all answers to an item. `isDone`: the answers are complete. */
export function countsBroken(
  answers: readonly Item[],
  definition: Item,
  isDone: boolean,
): readonly string[] {
  const of = (name: string) => extensionValues(definition, `questionnaire-${name}`).map(Number)
  const exclusive = toObjects(definition.answerOption).filter((option) => {
    return extensionValues(option, 'questionnaire-optionExclusive').includes(true)
  })
  const codes = new Set(exclusive.map((option) => answerKey(valueIn(option))))
  const isExclusive = answers.some((answer) => codes.has(answerKey(valueIn(answer))))
  return [
    ...of('minOccurs').flatMap((least) =>
      isDone && answers.length < least ? `takes ${least} answers at least` : [],
    ),
    ...of('maxOccurs').flatMap((most) =>
      answers.length > most ? `takes ${most} answers at most` : [],
    ),
    ...(isExclusive && answers.length > 1 ? ['has an exclusive option and others'] : []),
  ]
}

function answerKey(value: unknown): string {
  return isObject(value) ? `${value.system}|${value.code}` : String(value)
}

/** Returns undefined for values that cannot be compared, including overlapping dates. */
function compare(value: unknown, limit: unknown): 'below' | 'above' | undefined {
  const [a, b] = [valueRange(value), valueRange(limit)]
  if (a === undefined || b === undefined) return undefined
  if (a.low < b.low && a.high <= b.low) return 'below'
  return a.high > b.high && a.low >= b.high ? 'above' : undefined
}

const TIME = /^(\d\d):(\d\d):(\d\d(?:\.\d+)?)$/

function valueRange(value: unknown): { readonly low: number; readonly high: number } | undefined {
  const number = toNumber(value)
  if (number !== undefined) return { low: number, high: number }
  const time = typeof value === 'string' ? TIME.exec(value) : null
  if (time === null) return parseDate(value)
  const [, hours, minutes, seconds] = time.map(Number)
  const at = ((hours ?? 0) * 60 + (minutes ?? 0)) * 60 + (seconds ?? 0)
  return { low: at, high: at }
}

function decimalPlaces(value: unknown): number {
  if (toNumber(value) === undefined) return 0
  return /\.(\d+)/.exec(String(value))?.[1]?.length ?? 0
}

function isOfPattern(value: unknown, pattern: unknown): boolean {
  if (typeof value !== 'string' || typeof pattern !== 'string') return true
  return attempt(() => compiledPattern(pattern).testExact(value)) ?? true
}

function notAmong(allowed: readonly unknown[], given: unknown): readonly string[] {
  const isFine = allowed.length === 0 || given === undefined || allowed.includes(given)
  return isFine ? [] : [`takes ${allowed.join(' or ')}, not ${given}`]
}
