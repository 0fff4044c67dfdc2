/** Modules that `scripts/console/generated.ts` makes. */
declare module 'console:bot-templates' {
  interface BotTemplate {
    readonly name: string
    readonly description: string
    readonly code: string
  }
  export const botTemplates: readonly BotTemplate[]
}

declare module 'console:bot-declarations' {
  /** Type declarations by path below `node_modules`. */
  export const botDeclarations: Readonly<Record<string, string>>
}

declare module 'console:language-worker' {
  /** Name of the file among the console's assets. */
  export const languageWorker: string
}
