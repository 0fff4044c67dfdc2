/**
 * Secrets of platform types, which no index, expression, constraint, profile or export reads: each would answer
 * questions about its input, or outlive the rights of its owner. Reads show some to administrators (fields.ts).
 */
import { isObject, type Resource } from '../../fhir/resource.ts'
import { withoutPaths } from '../paths.ts'

const PATHS: Readonly<Record<string, readonly string[]>> = {
  ClientApplication: ['secret', 'retiringSecret', 'identityProvider.clientSecret'],
  DomainConfiguration: ['identityProvider.clientSecret'],
  JsonWebKey: ['d', 'p', 'q', 'dp', 'dq', 'qi', 'k'],
  Login: ['refreshSecret', 'browser'],
  Project: ['secret', 'systemSecret', 'site.recaptchaSecretKey', 'site.googleClientSecret'],
  Subscription: ['channel.header'],
  User: ['passwordHash', 'mfaSecret'],
  UserSecurityRequest: ['secret'],
}
const SECRET_EXTENSION = /secret$/i
const NONE: readonly string[] = []

export function secretPaths(type: string): readonly string[] {
  return PATHS[type] ?? NONE
}

export function hasSecretExtensions(type: string): boolean {
  return PATHS[type] !== undefined
}

/** Returns the resource for evaluators, without secret elements and extensions. */
export function withoutSecrets(resource: Resource): Resource {
  const paths = PATHS[resource.resourceType]
  if (paths === undefined) return resource
  return withoutSecretExtensions(withoutPaths(resource, paths))
}

export function withoutSecretExtensions(resource: Resource): Resource {
  const { extension, ...rest } = resource
  if (!Array.isArray(extension)) return resource
  const kept = extension.filter((item) => !isSecret(item))
  return (kept.length === 0 ? rest : { ...rest, extension: kept }) as Resource
}

function isSecret(item: unknown): boolean {
  return isObject(item) && typeof item.url === 'string' && SECRET_EXTENSION.test(item.url)
}
