/**
 * Expressions of a Questionnaire's templates, and the variables that they use: FHIRPath, or X-FHIR-Query with the
 * caller's rights. https://hl7.org/fhir/uv/sdc/expressions.html#x-fhir-query-enhancements
 */
import { badRequest, tooCostly } from '../../core/errors.ts'
import { yieldTurn } from '../../core/yielding.ts'
import { isResourceType } from '../../fhir/definitions.ts'
import { isObject, type Resource, toObjects } from '../../fhir/resource.ts'
import { compileTenant } from '../../fhirpath/custom.ts'
import { loadEngine } from '../../fhirpath/engine.ts'
import { readQuery } from '../../request/negotiate.ts'
import { charge, SEARCH } from '../../request/quota.ts'
import type { OperationCall } from '../../request/request.ts'
import { searchByQuery } from '../../rest/criteria.ts'
import { escapeValue } from '../../search/language/values.ts'
import { present } from '../../store/rows/rows.ts'
import type { Version } from '../../store/rows/version.ts'

const VARIABLE = 'http://hl7.org/fhir/StructureDefinition/variable'
const FHIRPATH = 'text/fhirpath'
const QUERY = 'application/x-fhir-query'
const MOST_QUERIES = 10
const MOST_MATCHES = 100
const MOST_EXPRESSIONS = 500
const BASES = [undefined, 'QuestionnaireResponse.item', 'QuestionnaireResponse.item.answer']
const EXPRESSION = /templateExtract(Context|Value)$|^(fullUrl|resourceId|if[A-Z]\w+)$/
/** Parameters whose result a variable would not have. */
const WITHOUT_EFFECT =
  /^_(include|revinclude|summary|elements|fields|total|contained|format|pretty|cursor)/

/** Errors: 400 `too-costly`. */
export function templateExpressions(questionnaire: Resource): ReadonlySet<string> {
  const expressions = new Set<string>()
  const collect = (value: unknown) => {
    if (Array.isArray(value)) for (const item of value) collect(item)
    if (!isObject(value)) return
    const { url, valueString, valueExpression } = value
    const given = isObject(valueExpression) ? valueExpression.expression : valueString
    if (typeof given === 'string' && EXPRESSION.test(String(url))) expressions.add(given)
    for (const item of Object.values(value)) collect(item)
  }
  collect(questionnaire)
  if (expressions.size > MOST_EXPRESSIONS)
    throw tooCostly('The templates have too many expressions')
  return expressions
}

/** Compiles in separate turns, since that takes longer than evaluating. */
export async function compileAhead(expressions: ReadonlySet<string>): Promise<void> {
  await loadEngine()
  for (const expression of expressions) {
    for (const base of BASES) {
      compileTenant(expression, base)
      await yieldTurn()
    }
  }
}

interface Variable {
  readonly name: string
  readonly language: unknown
  readonly expression: string
  readonly place: string
}

type Parts = Readonly<Record<string, unknown>>

interface Holder {
  /** The Questionnaire or one of its items, and its path. */
  readonly defined: Parts
  readonly path: string
  /** The response, or the item of it that answers the holder. */
  readonly node: unknown
  /** The variables above it. */
  readonly known: Parts
}

/** Returns the known variables and those of the holder, in their order; each may use earlier ones. */
export type ResolveVariables = (holder: Holder) => Promise<Parts>

/**
 * Resolves the variables that templates use; a form may have others, for its display. A query with an empty part is
 * not made. Errors: 400 for another language or an invalid query, `too-costly`.
 */
export function variableResolver(
  call: OperationCall,
  expressions: ReadonlySet<string>,
  { questionnaire, response }: Readonly<Record<'questionnaire' | 'response', Resource>>,
): ResolveVariables {
  const names = usedNames(questionnaire, expressions)
  let queries = 0
  /** Counts the expressions of variables, at repeated items each time. */
  let evaluations = 0
  const query = async (text: string, place: string) => {
    queries += 1
    if (queries > MOST_QUERIES)
      throw tooCostly(`The templates use more than ${MOST_QUERIES} queries`)
    return await runQuery(call, text, place)
  }
  return async ({ defined, path, node, known }) => {
    const wanted = listVariables(defined, path).filter(({ name }) => names.has(name))
    if (wanted.length === 0) return known
    evaluations += wanted.flatMap(expressionsIn).length
    if (evaluations > MOST_EXPRESSIONS) throw tooCostly('The variables have too many expressions')
    await loadEngine()
    const variables: Record<string, unknown> = { ...known }
    for (const { name, language, expression, place } of wanted) {
      const evaluate = async (text: string) => {
        await yieldTurn()
        return compileTenant(text, nodeTypePath(node))(node, { ...variables, resource: response })
      }
      if (language === FHIRPATH) variables[name] = await evaluate(expression)
      else if (language !== QUERY) {
        throw badRequest(`A variable needs an expression of ${FHIRPATH} or ${QUERY}`, place)
      } else {
        const text = await fillQuery(expression, evaluate)
        variables[name] = text === undefined ? [] : await query(text, place)
      }
    }
    return variables
  }
}

/** Nodes are part of a response, or answer values. */
export function nodeTypePath(node: unknown): string | undefined {
  if (!isObject(node) || node.resourceType !== undefined) return undefined
  if (typeof node.linkId === 'string') return 'QuestionnaireResponse.item'
  const isAnswer = Object.keys(node).some((name) => /^value[A-Z]/.test(name))
  return isAnswer ? 'QuestionnaireResponse.item.answer' : undefined
}

function listVariables({ extension }: Parts, path: string): readonly Variable[] {
  return toObjects(extension).flatMap(({ url, valueExpression }, i) => {
    if (url !== VARIABLE || !isObject(valueExpression)) return []
    const { name, language, expression } = valueExpression
    if (typeof name !== 'string' || typeof expression !== 'string') return []
    return [{ name, language, expression, place: `${path}.extension[${i}]` }]
  })
}

/** Returns the names in the expressions of templates and of the variables that these use, of all items. */
function usedNames(questionnaire: Resource, expressions: ReadonlySet<string>): ReadonlySet<string> {
  const variables: Variable[] = []
  const collect = (defined: Parts) => {
    variables.push(...listVariables(defined, ''))
    for (const item of toObjects(defined.item)) collect(item)
  }
  collect(questionnaire)
  const names = new Set([...expressions].flatMap(namesIn))
  // A variable uses those before it: of its holder or of those above.
  for (const { name, expression } of variables.toReversed()) {
    if (names.has(name)) for (const used of namesIn(expression)) names.add(used)
  }
  return names
}

function namesIn(expression: string): readonly string[] {
  return [...expression.matchAll(/%[`']?([\w-]+)/g)].map(([, name = '']) => name)
}

/** Ends at the next braces that open, so that many of them are read once. */
const EMBEDDED = /\{\{((?:(?!\{\{).)*?)\}\}/g

function expressionsIn({ language, expression }: Variable): readonly string[] {
  if (language === FHIRPATH) return [expression]
  return [...expression.matchAll(EMBEDDED)].map(([, path = '']) => path)
}

/** Returns undefined if one of the embedded expressions is empty. */
async function fillQuery(
  text: string,
  evaluate: (path: string) => Promise<readonly unknown[]>,
): Promise<string | undefined> {
  let filled = ''
  let end = 0
  for (const { 0: all, 1: path = '', index } of text.matchAll(EMBEDDED)) {
    const values = await evaluate(path)
    if (values.length === 0) return undefined
    const joined = values.map((value) => encodeURIComponent(escapeValue(String(value)))).join()
    filled += text.slice(end, index) + joined
    end = index + all.length
  }
  return filled + text.slice(end)
}

/** Returns a searchset Bundle for `Type?query`, or the resource for `Type/id`. Errors: 400, 403. */
async function runQuery(call: OperationCall, text: string, place: string): Promise<unknown> {
  const { services, principal, request } = call
  const [, type = '', id, search] = /^([A-Za-z]+)(?:\/([\w.-]+)|\?(.*))$/.exec(text) ?? []
  if (!isResourceType(type)) throw badRequest('A query must be Type?parameters or Type/id', place)
  const shown = (version: Version) => JSON.parse(present(version, principal, false)) as Resource
  await charge(services, principal, { request, units: SEARCH })
  if (id !== undefined) {
    const [version] = await services.repository.readMany(principal, [{ type, id }])
    return version?.content === undefined ? [] : shown(version)
  }
  const query = readQuery(search ?? '')
  const idle = [...query.keys()].find((name) => WITHOUT_EFFECT.test(name))
  if (idle !== undefined) throw badRequest(`A query of a variable cannot have ${idle}`, place)
  const count = Number(query.get('_count') ?? MOST_MATCHES)
  if (!(count >= 1 && count <= MOST_MATCHES)) {
    throw badRequest(`_count must be 1 to ${MOST_MATCHES}`, place)
  }
  const { versions } = await searchByQuery(call, type, query, { count })
  const entry = versions.map((version) => ({ resource: shown(version) }))
  return { resourceType: 'Bundle', type: 'searchset', entry }
}
