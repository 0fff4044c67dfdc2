/** Finds the Questionnaire of a QuestionnaireResponse and checks one against the other. */
import { LRUCache } from 'lru-cache'
import { type Principal, systemPrincipal } from '../access/principal.ts'
import type { Issue } from '../errors.ts'
import { parseJson } from '../fhir/json.ts'
import { chosen, isResource, parseReference, type Resource, urlOf } from '../fhir/resource.ts'
import { escapeValue } from '../query/values.ts'
import type { Services } from '../services.ts'
import { findVersions } from '../store/rows/lookups.ts'
import { boundCodes } from '../terminology/bound-codes.ts'
import { answerValueSets, checkResponse } from '../validation/questionnaire.ts'
import { Report } from '../validation/report.ts'

export const RESPONSE = 'QuestionnaireResponse'

const CANDIDATES = 50
const FRESH_MS = 5_000
const MOST_KNOWN = 200

/** By Project and canonical; `none` where there is none. */
const known = new LRUCache<string, Resource | 'none'>({ max: MOST_KNOWN, ttl: FRESH_MS })

/** A Questionnaire has changed. */
export function forgetQuestionnaires(): void {
  known.clear()
}

/** None where its Questionnaire is not here. */
export async function responseIssues(
  services: Services,
  { project }: Pick<Principal, 'project'>,
  response: Resource,
  isRefused: boolean,
): Promise<readonly Issue[]> {
  const questionnaire = await questionnaireOf(services, project, response)
  if (questionnaire === undefined) return []
  const sets = answerValueSets(questionnaire)
  const { codes } = await boundCodes(services, project, sets, response)
  const report = new Report(isRefused, [RESPONSE])
  checkResponse(response, questionnaire, codes, report)
  return report.issues
}

async function questionnaireOf(
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

/** By its url, or by a literal reference, as many write it. */
async function findQuestionnaire(
  { repository }: Services,
  project: Principal['project'],
  canonical: string,
): Promise<Resource | undefined> {
  const literal = parseReference(canonical)
  const isLiteral = literal?.type === 'Questionnaire'
  const condition = isLiteral
    ? ({ code: '_id', type: 'token', modifier: undefined, values: [literal.id] } as const)
    : ({ code: 'url', type: 'uri', modifier: undefined, values: [urlEscaped(canonical)] } as const)
  // Validation is the same for every member, whatever it may read.
  const reader: Principal = { ...systemPrincipal(project), isSuperAdmin: false }
  const all = await findVersions(repository, reader, 'Questionnaire', {
    conditions: [condition],
    count: CANDIDATES,
  })
  // A stored version is a resource.
  const resources = all.map(({ content }) => parseJson(content ?? '{}') as Resource)
  return isLiteral ? resources[0] : chosen(resources, canonical)
}

function urlEscaped(canonical: string): string {
  return escapeValue(urlOf(canonical))
}
