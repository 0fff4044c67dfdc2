/**
 * Secrets of the platform's types. No index, expression, constraint or profile reads them, whoever the caller is, and
 * no export holds them: each of those answers questions about its input, and a file outlives the rights of whoever
 * made it. Reads show some of them to administrators (fields.ts).
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

/** Element paths, as a policy would hide them. */
export function secretPaths(type: string): readonly string[] {
  return PATHS[type] ?? NONE
}

/** True for a type whose extensions may hold secrets. */
export function hasSecretExtensions(type: string): boolean {
  return PATHS[type] !== undefined
}

/** The resource as evaluators see it: without its secret elements and extensions. */
export function withoutSecrets(resource: Resource): Resource {
  const paths = PATHS[resource.resourceType]
  if (paths === undefined) return resource
  return withoutSecretExtensions(withoutPaths(resource, paths))
}

export function withoutSecretExtensions(resource: Resource): Resource {
  const { extension, ...rest } = resource
  if (!Array.isArray(extension)) return resource
  const kept = extension.filter((item) => !isSecret(item))
  // Only a list was taken away.
  return (kept.length === 0 ? rest : { ...rest, extension: kept }) as Resource
}

function isSecret(item: unknown): boolean {
  return isObject(item) && typeof item.url === 'string' && SECRET_EXTENSION.test(item.url)
}
