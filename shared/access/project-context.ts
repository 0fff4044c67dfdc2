/** Maps a Project resource to the context that the store and the rules need. */

import {
  asArray,
  isObject,
  parseReference,
  type Resource,
  referenceIn,
  toObjects,
} from '../fhir/resource.ts'
import { REGISTRY_TYPES } from './policy.ts'
import {
  type LinkedProject,
  type Principal,
  type ProjectContext,
  SYSTEM_PROJECT_NUMBER,
  systemPrincipal,
} from './principal.ts'

export function projectContext(project: Resource, number: number): ProjectContext {
  return {
    id: project.id ?? '',
    number,
    name: typeof project.name === 'string' ? project.name : '',
    superAdmin: project.superAdmin === true,
    strictMode: project.strictMode !== false,
    features: stringItems(project.features),
    checkReferencesOnWrite: project.checkReferencesOnWrite === true,
    updateAsCreate: systemSetting(project, 'updateAsCreate')?.valueBoolean === true,
    quota: projectQuota(project),
    rateLimits: {
      requests: wholeSetting(project, 'rateLimit'),
      auth: wholeSetting(project, 'authRateLimit'),
    },
    preCommit: findSetting(project.setting, 'preCommitSubscriptionsEnabled')?.valueBoolean === true,
    hasSecrets: Array.isArray(project.secret) && project.secret.length > 0,
    requiresDeclarations:
      findSetting(project.setting, 'botDeclarationsRequired')?.valueBoolean === true,
    requiresFactor: findSetting(project.setting, 'mfaRequired')?.valueBoolean === true,
    mailsCodes: findSetting(project.setting, 'mfaMailCodes')?.valueBoolean === true,
    botConcurrency: wholeSetting(project, 'botConcurrency'),
    graphql: {
      depth: wholeSetting(project, 'graphqlMaxDepth'),
      cost: wholeSetting(project, 'graphqlMaxCost'),
      searches: wholeSetting(project, 'graphqlMaxSearches'),
    },
    links: linkedProjectIds(project),
    exports: stringItems(project.exportedResourceType),
    defaultProfiles: readDefaultProfiles(project),
    refusesResponses:
      findSetting(project.setting, 'validateQuestionnaireResponse')?.valueString === 'refuse',
    takesCodes: findSetting(project.setting, 'validateTerminology')?.valueString === 'off',
  }
}

function stringItems(value: unknown): readonly string[] {
  return Array.isArray(value) ? value.filter((item) => typeof item === 'string') : []
}

function linkedProjectIds({ link }: Resource): readonly string[] {
  return asArray(link).flatMap((item) => {
    const target = parseReference(isObject(item) ? referenceIn(item.project) : undefined)
    return target?.type === 'Project' ? [target.id] : []
  })
}

function readDefaultProfiles({ defaultProfile }: Resource): ReadonlyMap<string, readonly string[]> {
  const items = toObjects(defaultProfile)
  return new Map(items.map((item) => [String(item.resourceType), stringItems(item.profile)]))
}

const MEMBER_QUOTA = 50_000

/** Off by default: one large transaction would use up a member's default. */
function projectQuota(project: Resource): ProjectContext['quota'] {
  if (systemSetting(project, 'enableFhirQuota')?.valueBoolean !== true) return undefined
  const member = wholeSetting(project, 'userFhirQuota') ?? MEMBER_QUOTA
  return { member, project: wholeSetting(project, 'totalFhirQuota') ?? 10 * member }
}

/** Load units a minute of one member: option `fhirQuota` of its UserConfiguration. */
export function memberQuota(configuration: Resource | undefined): number | undefined {
  const value = toObjects(configuration?.option).find(({ id }) => id === 'fhirQuota')?.valueInteger
  return typeof value === 'number' ? value : undefined
}

function wholeSetting(project: Resource, name: string): number | undefined {
  const value = systemSetting(project, name)?.valueInteger
  return typeof value === 'number' ? value : undefined
}

function systemSetting(project: Resource, name: string) {
  return findSetting(project.systemSetting, name)
}

export function findSetting(
  settings: unknown,
  name: string,
): Readonly<Record<string, unknown>> | undefined {
  if (!Array.isArray(settings)) return undefined
  return settings.filter(isObject).find((item) => item.name === name)
}

export const SYSTEM_PROJECT: ProjectContext = {
  id: '00000000-0000-0000-0000-000000000001',
  number: SYSTEM_PROJECT_NUMBER,
  name: 'Super Admin',
  superAdmin: true,
  strictMode: true,
  features: [],
  checkReferencesOnWrite: false,
  updateAsCreate: false,
}

/** The service itself, in every Project. */
export const system = systemPrincipal(SYSTEM_PROJECT)

/** Never shared: its secret belongs to its Project alone. */
const NEVER_SHARED = 'ClientApplication'

/** A super admin names Projects instead. */
export function linkedProjects(
  { project, isSuperAdmin }: Principal,
  type: string,
): readonly LinkedProject[] {
  if (isSuperAdmin || project.linked === undefined) return []
  if (type === NEVER_SHARED || REGISTRY_TYPES.has(type)) return []
  return project.linked.filter(({ exports }) => exports.length === 0 || exports.includes(type))
}

/** True when a Project shares the type with the Principal; a linked Project shares only certain types. */
export function isShared(principal: Principal, project: number, type: string): boolean {
  if (project === principal.project.number || principal.isSuperAdmin) return true
  return linkedProjects(principal, type).some(({ number }) => number === project)
}

export function exportsType({ exportedResourceType }: Resource, type: string): boolean {
  const exports = stringItems(exportedResourceType)
  return exports.length === 0 || exports.includes(type)
}

export function unlinked(principal: Principal): Principal {
  return { ...principal, project: { ...principal.project, linked: [] } }
}
