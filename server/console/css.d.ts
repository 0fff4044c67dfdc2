/** Style sheets that the bundler takes in. */
declare module '*.css'

/** The bundler gives this one as a text. */
declare module 'graphiql/style.css' {
  const text: string
  export = text
}
