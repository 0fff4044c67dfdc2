/** Validates a QuestionnaireResponse against its Questionnaire. */

import { type Principal, systemPrincipal } from '../access/principal.ts'
import { Cache } from '../core/cache.ts'
import type { Issue } from '../core/errors.ts'
import { parseJson } from '../fhir/json.ts'
import {
  canonicalUrl,
  chosen,
  isObject,
  isResource,
  parseReference,
  type Resource,
  toObjects,
} from '../fhir/resource.ts'
import { withinTime } from '../fhirpath/custom.ts'
import type { Services } from '../request/services.ts'
import { escapeValue } from '../search/language/values.ts'
import { equals, findVersions } from '../store/lookups.ts'
import { boundCodes } from '../terminology/bound-codes.ts'
import { countsBroken, limitsBroken } from '../validation/answer-limits.ts'
import { type CodeList, Report } from '../validation/shapes.ts'
import { EnableWhen, type Item, isSame, type Scope } from './enable-when.ts'

export const RESPONSE = 'QuestionnaireResponse'

const CANDIDATES = 50
const FRESH_MS = 5_000
const MOST_KNOWN = 200
const MAX_MS = 5_000

/** By Project and canonical; `none` for an unknown one. */
const known = new Cache<string, Resource | 'none'>({
  name: 'questionnaires',
  max: MOST_KNOWN,
  ttlMs: FRESH_MS,
  types: ['Questionnaire'],
})

/** Returns no issues for an unknown Questionnaire. */
export async function responseIssues(
  services: Services,
  { project }: Pick<Principal, 'project'>,
  response: Resource,
  isRefused: boolean,
): Promise<readonly Issue[]> {
  const questionnaire = await cachedQuestionnaire(services, project, response)
  if (questionnaire === undefined) return []
  const sets = answerValueSets(questionnaire)
  const { codes } = await boundCodes(services, project, sets, response)
  const report = new Report(isRefused, [RESPONSE])
  withinTime(MAX_MS, 'The response takes too long to validate', () =>
    checkResponse(response, questionnaire, codes, report),
  )
  return report.issues
}

async function cachedQuestionnaire(
  services: Services,
  project: Principal['project'],
  { questionnaire: canonical, contained }: Resource,
): Promise<Resource | undefined> {
  if (typeof canonical !== 'string') return undefined
  if (canonical.startsWith('#')) {
    const inside = Array.isArray(contained) ? contained.filter(isResource) : []
    return inside.find((one) => `#${one.id}` === canonical && one.resourceType === 'Questionnaire')
  }
  const key = `${project.id} ${canonical}`
  const found = known.get(key) ?? (await findQuestionnaire(services, project, canonical)) ?? 'none'
  known.set(key, found)
  return found === 'none' ? undefined : found
}

/** By url or, as is common, by a literal reference. */
async function findQuestionnaire(
  { repository }: Services,
  project: Principal['project'],
  canonical: string,
): Promise<Resource | undefined> {
  const literal = parseReference(canonical)
  const isLiteral = literal?.type === 'Questionnaire'
  const condition = isLiteral
    ? equals('_id', 'token', literal.id)
    : equals('url', 'uri', escapeValue(canonicalUrl(canonical)))
  // Validation is independent of the member's read rights.
  const reader = systemPrincipal(project, 'project')
  const all = await findVersions(repository, reader, 'Questionnaire', {
    conditions: [condition],
    count: CANDIDATES,
  })
  const resources = all.map(({ content }) => parseJson(content ?? '{}') as Resource)
  return isLiteral ? resources[0] : chosen(resources, canonical)
}

// Checks of places, types, counts and values of answers. https://hl7.org/fhir/R4/questionnaireresponse.html#notes

function answerValueSets(questionnaire: Resource): readonly string[] {
  const sets = (item: Item): string[] => [
    ...(typeof item.answerValueSet === 'string' ? [item.answerValueSet] : []),
    ...toObjects(item.item).flatMap(sets),
  ]
  return sets(questionnaire)
}

/** `report` is positioned at the response. Both resources are structurally valid. */
function checkResponse(
  response: Resource,
  questionnaire: Resource,
  codes: ReadonlyMap<string, CodeList>,
  report: Report,
): void {
  const isDone = response.status === 'completed' || response.status === 'amended'
  const enabling = new EnableWhen(questionnaire, response)
  const scope = { definition: questionnaire, content: response, outer: undefined }
  checkItems(scope, { enabling, codes, report, isDone })
}

interface Check {
  readonly enabling: EnableWhen
  readonly codes: ReadonlyMap<string, CodeList>
  readonly report: Report
  /** True when required answers must be present. */
  readonly isDone: boolean
}

function checkItems(scope: Scope, check: Check): void {
  const { report, enabling } = check
  const { definition: holder, content } = scope
  const defined = holder.type === 'display' ? [] : toObjects(holder.item)
  const definitions = new Map(defined.map((item) => [String(item.linkId), item]))
  const firsts = new Map<string, Item>()
  const counts = new Map<string, number>()
  report.enter('item')
  for (const [index, item] of toObjects(content.item).entries()) {
    const linkId = String(item.linkId)
    if (!firsts.has(linkId)) firsts.set(linkId, item)
    counts.set(linkId, (counts.get(linkId) ?? 0) + 1)
    report.enter(index)
    const definition = definitions.get(linkId)
    if (definition === undefined) {
      fault(check, `The Questionnaire has no item ${linkId} in this place`, 'linkId')
    } else checkItem(item, definition, scope, check)
    report.leave()
  }
  report.leave()
  const places = enabling.missingPlaces(scope, [...definitions.keys()], firsts)
  for (const [linkId, definition] of definitions) {
    const count = counts.get(linkId) ?? 0
    if (count > 1 && definition.repeats !== true) fault(check, `Item ${linkId} does not repeat`)
    const isMissing = count === 0 && definition.required === true && check.isDone
    if (isMissing && enabling.isEnabled(definition, scope, places.get(linkId))) {
      fault(check, `Item ${linkId} is required`)
    }
  }
}

function fault({ report }: Check, text: string, step?: string): void {
  report.rule(text, step, 'business-rule')
}

function checkItem(item: Item, definition: Item, outer: Scope, check: Check): void {
  const { report, enabling } = check
  const linkId = String(definition.linkId)
  const answers = toObjects(item.answer)
  const hasContent = answers.length > 0 || toObjects(item.item).length > 0
  if (hasContent && !enabling.isEnabled(definition, outer, enabling.place(item))) {
    fault(check, `Item ${linkId} is not enabled`)
  }
  if (definition.type === 'group' || definition.type === 'display') {
    if (answers.length > 0) fault(check, `Item ${linkId} takes no answer`, 'answer')
    checkItems({ definition, content: item, outer }, check)
    if (!hasContent && definition.required === true && check.isDone) {
      fault(check, `Item ${linkId} is required`)
    }
    return
  }
  if (toObjects(item.item).length > 0) {
    fault(check, `Items below question ${linkId} belong into its answer`, 'item')
  }
  if (answers.length > 1 && definition.repeats !== true) {
    fault(check, `Item ${linkId} takes one answer`, 'answer')
  }
  if (answers.length === 0 && definition.required === true && check.isDone) {
    fault(check, `Item ${linkId} is required`)
  }
  for (const broken of countsBroken(answers, definition, check.isDone)) {
    fault(check, `Item ${linkId} ${broken}`, 'answer')
  }
  report.enter('answer')
  for (const [index, answer] of answers.entries()) {
    report.enter(index)
    checkAnswer(answer, definition, check)
    checkItems({ definition, content: answer, outer }, check)
    report.leave()
  }
  report.leave()
}

const VALUES: Readonly<Record<string, readonly string[]>> = {
  boolean: ['valueBoolean'],
  decimal: ['valueDecimal'],
  integer: ['valueInteger'],
  date: ['valueDate'],
  dateTime: ['valueDateTime'],
  time: ['valueTime'],
  string: ['valueString'],
  text: ['valueString'],
  url: ['valueUri'],
  choice: ['valueCoding'],
  'open-choice': ['valueCoding', 'valueString'],
  attachment: ['valueAttachment'],
  reference: ['valueReference'],
  quantity: ['valueQuantity'],
}

function valueName(answer: Item): string | undefined {
  return Object.keys(answer).find((name) => name.startsWith('value'))
}

function checkAnswer(answer: Item, definition: Item, check: Check): void {
  const name = valueName(answer)
  if (name === undefined) return
  const linkId = String(definition.linkId)
  const options = toObjects(definition.answerOption)
  const listed = options.flatMap((option) => valueName(option) ?? [])
  const allowed = [...(VALUES[String(definition.type)] ?? [name]), ...listed]
  if (!allowed.includes(name)) {
    fault(check, `Item ${linkId} takes ${allowed.join(' or ')}`, name)
    return
  }
  const value = answer[name]
  const { maxLength } = definition
  if (typeof value === 'string' && typeof maxLength === 'number' && [...value].length > maxLength) {
    fault(check, `Item ${linkId} takes ${maxLength} characters`, name)
  }
  for (const broken of limitsBroken(value, definition)) {
    fault(check, `Item ${linkId} ${broken}`, name)
  }
  // A free-text answer to an open choice is not an option.
  if (definition.type === 'open-choice' && name === 'valueString') return
  const isOption = options.some((option) => isSame(option[name], value))
  if (options.length > 0 && !isOption) fault(check, `Item ${linkId} has no such option`, name)
  const codes = check.codes.get(String(definition.answerValueSet))
  if (codes === undefined || !isObject(value) || typeof value.code !== 'string') return
  const system = typeof value.system === 'string' ? value.system : undefined
  if (!codes.has(system, value.code)) {
    fault(check, `Item ${linkId} takes a code of ${String(definition.answerValueSet)}`, name)
  }
}
