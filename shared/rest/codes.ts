/** Expands `:in`, `:not-in`, `:above` and `:below` of tokens to codes, before the search runs. */
import { callerKey } from '../access/principal.ts'
import { Cache } from '../core/cache.ts'
import { badRequest, tooCostly, withExpression } from '../core/errors.ts'
import { isResource } from '../fhir/resource.ts'
import type { ValueSet } from '../fhir/terminology.ts'
import type { CallerContext } from '../request/request.ts'
import {
  asksForCodes,
  type Condition,
  type Criterion,
  isCondition,
  type ListedCode,
  mapLeaves,
  type SearchRequest,
} from '../search/language/search-request.ts'
import { parseTokenValue, unescapeValue } from '../search/language/values.ts'
import { parseVersion } from '../store/rows/rows.ts'
import { openTerminology, type Terminology } from '../terminology/find.ts'
import { evaluation } from '../terminology/members.ts'
import { expandValueSet } from '../terminology/value-set-codes.ts'

const MOST_CODES = 10_000
/** Same maximum age as a policy. */
const LISTED_MS = 4_000
const listed = new Cache<string, readonly ListedCode[]>({
  name: 'codes-of-searches',
  max: 200,
  ttlMs: LISTED_MS,
  types: ['ValueSet', 'CodeSystem'],
})

/** Errors: 400 for an unknown ValueSet or CodeSystem, or one too costly to expand. */
export async function expandCodeConditions(
  asking: CallerContext,
  request: SearchRequest,
): Promise<SearchRequest> {
  const terminology = openTerminology(asking.services, asking.principal)
  const listed = (criterion: Criterion): Promise<Criterion> =>
    mapLeaves(criterion, async (leaf) => {
      if (isCondition(leaf)) return asksForCodes(leaf) ? withList(asking, terminology, leaf) : leaf
      if (leaf.kind === 'compartment') return leaf
      const ends = leaf.ends.map(async (end) => ({
        ...end,
        criterion: await listed(end.criterion),
      }))
      return { ...leaf, ends: await Promise.all(ends) }
    })
  return { ...request, conditions: await Promise.all(request.conditions.map(listed)) }
}

const FROM_VALUE_SETS: ReadonlySet<string | undefined> = new Set(['in', 'not-in'])

async function withList(
  asking: CallerContext,
  terminology: Terminology,
  condition: Condition,
): Promise<Condition> {
  const { code, modifier, values } = condition
  const listCodes = FROM_VALUE_SETS.has(modifier)
    ? (value: string) => codesOfValueSet(asking, terminology, unescapeValue(value))
    : (value: string) => relatives(terminology, value, modifier)
  try {
    const codes = (await Promise.all(values.map(listCodes))).flat()
    if (codes.length > MOST_CODES) throw tooMany(values.join())
    return { ...condition, codes }
  } catch (error) {
    throw withExpression(error, `${code}:${modifier}`)
  }
}

function tooMany(name: string) {
  return tooCostly(`${name.slice(0, 200)} has more than ${MOST_CODES} codes`)
}

/** By url, `url|version` or `ValueSet/id`. */
async function codesOfValueSet(
  asking: CallerContext,
  terminology: Terminology,
  name: string,
): Promise<readonly ListedCode[]> {
  const key = `${asking.principal.project.id} ${callerKey(asking.principal)} ${name}`
  const known = listed.get(key)
  if (known !== undefined) return known
  const valueSet = await findValueSet(asking, terminology, name)
  const wish = { text: undefined, activeOnly: false, allSpellings: true, needed: MOST_CODES + 1 }
  const { codes } = await expandValueSet(evaluation(terminology), valueSet, wish)
  if (codes.length > MOST_CODES) throw tooMany(`ValueSet ${name}`)
  const made = codes.map(({ system, code }) => ({ system, code }))
  listed.set(key, made)
  return made
}

async function findValueSet(
  { services, principal }: CallerContext,
  terminology: Terminology,
  name: string,
): Promise<ValueSet> {
  const id = /^ValueSet\/([^/|]+)$/.exec(name)?.[1]
  if (id === undefined) {
    const found = await terminology.valueSet(name)
    if (found === undefined) throw badRequest(`ValueSet ${name} is not known`)
    return found
  }
  const [version] = await services.repository.readMany(principal, [{ type: 'ValueSet', id }])
  const resource = version && parseVersion(version)
  if (!isResource(resource)) throw badRequest(`${name} is not known`)
  // Stored ValueSets are validated on write.
  return resource as unknown as ValueSet
}

async function relatives(
  terminology: Terminology,
  value: string,
  modifier: string | undefined,
): Promise<readonly ListedCode[]> {
  const { system = '', code } = parseTokenValue(value)
  if (system === '' || code === undefined) {
    throw badRequest(`:${modifier} needs system|code, not ${value}`)
  }
  const source = await terminology.codeSystem(system)
  if (source === undefined || !source.hasConcepts) {
    throw badRequest(`CodeSystem ${system} is not known`)
  }
  const op = modifier === 'below' ? 'is-a' : 'generalizes'
  const filters = [{ property: 'concept', op, value: code }]
  const { concepts, isCut } = await source.list({ filters, limit: MOST_CODES })
  if (isCut) throw tooMany(value)
  const codes = new Set([code, ...concepts.map((concept) => concept.code)])
  return [...codes].map((one) => ({ system, code: one }))
}
